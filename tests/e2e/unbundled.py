"""Ten checkpoint folders of models that mmcalib does not bundle, as a user has them on disk."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from mmcalib.models import checkpoint
from mmcalib.models.catalogue import find_model
from tests.builders import some
from tests.schemas import DATA

UNBUNDLED: dict[str, dict[str, Any]] = yaml.safe_load((DATA / "unbundled.yaml").read_text("utf-8"))


def _merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged = {**base}
    for name, value in over.items():
        nested = isinstance(value, dict) and isinstance(base.get(name), dict)
        merged[name] = _merged(base[name], value) if nested else value
    return {name: value for name, value in merged.items() if over.get(name, 0) is not None}


def files_of(name: str) -> dict[str, Any]:
    described = UNBUNDLED[name]
    if "like" in described:
        bundled = checkpoint.checkpoint_files(some(find_model(described["like"])))
        files = {name: json.loads(text) for name, text in bundled.items()}
        return _merged(files, described["files"])
    special, chat, placeholders = described["tokenizer"].values()
    size = checkpoint.vocab_size(described["files"]["config.json"])
    names = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>", "pad_token": "</s>"}
    template = checkpoint.chat_template(chat, placeholders)
    return {
        **described["files"],
        "tokenizer.json": checkpoint.tokenizer_json(special, {}, size),
        "tokenizer_config.json": checkpoint.tokenizer_config(names, special, {}, template),
    }


def write(name: str, root: Path) -> Path:
    folder = root / name.replace("_", "-")
    folder.mkdir(parents=True)
    for file, content in files_of(name).items():
        text = content if isinstance(content, str) else json.dumps(content, indent=1)
        (folder / file).write_text(text)
    return folder
