"""A checkpoint's tokenizer from its tokenizer.json, by the `tokenizers` package alone."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmcalib.texts.recipe import Uncounted

if TYPE_CHECKING:
    from tokenizers import Tokenizer

FILE = "tokenizer.json"
# What decides how vLLM renders and encodes a request, beside the release.
_FILES = (
    FILE,
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "processor_config.json",
)
# Twice the largest known (Gemma 3: 33 MB).
_MOST_BYTES = 64 << 20
# These turn tokens back into text, add tokens that chats do not ask for, or cut.
_NOT_OF_CHATS = ("decoder", "post_processor", "truncation", "padding")
# The words themselves, which are not kept a second time.
_WORDS = ("vocab", "merges")


def digests(folder: Path) -> dict[str, str]:
    """Those of the files that there are, by name. Raises `Uncounted` without a tokenizer.json."""
    if not (folder / FILE).is_file():
        raise Uncounted(f"it has no {FILE}")
    found = {}
    for name in _FILES:
        path = folder / name
        if path.is_file():
            if path.stat().st_size > _MOST_BYTES:
                raise Uncounted(f"its {name} has more than {_MOST_BYTES >> 20} MiB")
            found[name] = hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()
    return found


def differences(folder: Path, whole: str) -> dict[str, Any]:
    """What of a tokenizer, written as JSON by the package, is not as in the folder's file. Raises
    `Uncounted` where it has other words.
    """
    ours, theirs = json.loads(_of(folder).to_str()), json.loads(whole)
    changed = {
        name: value
        for name, value in theirs.items()
        if name not in _NOT_OF_CHATS and value != ours.get(name)
    }
    if "model" in changed:
        words = ours["model"]
        model = {k: v for k, v in theirs["model"].items() if v != words.get(k)}
        if any(name in model for name in _WORDS) or model.keys() < words.keys() - theirs["model"]:
            raise Uncounted(f"its tokenizer has other words than its {FILE}")
        changed["model"] = model
    return changed


def opened(folder: Path, pipeline: Mapping[str, Any]) -> Tokenizer:
    """The folder's, with these parts in place of its own. Raises `Uncounted`."""
    from tokenizers import Tokenizer

    if not pipeline:
        return _of(folder)
    document = json.loads((folder / FILE).read_text(encoding="utf-8"))
    model = {**document["model"], **pipeline.get("model", {})}
    document = {**document, **pipeline, "model": model}
    try:
        return _unbounded(Tokenizer.from_str(json.dumps(document)))
    except Exception as error:
        raise Uncounted(f"its {FILE}: {error}") from error


def _of(folder: Path) -> Tokenizer:
    from tokenizers import Tokenizer

    try:
        return _unbounded(Tokenizer.from_file(str(folder / FILE)))
    except Exception as error:
        raise Uncounted(f"its {FILE}: {error}") from error


def _unbounded(tokenizer: Tokenizer) -> Tokenizer:
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer
