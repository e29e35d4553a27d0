"""Make the facts file of a bundled model from the publisher's files.

    python benchmarks/model_figures.py --add ID FOLDER [--like BUNDLED_ID]

FOLDER holds `config.json`, the processor's files and `tokenizer_config.json` as published, and
`facts.json`: `modalities`, `cannot_promise`, what no file holds by section (`placeholders`, `chat`,
...), and `sources`: the dotted name of a section or fact → [status, source]. The longest name
counts. With `--like` all that the folder lacks is taken from a bundled model.
"""

from __future__ import annotations

import argparse
import functools
import json
from pathlib import Path
from typing import Any

from mmcalib.models.catalogue import SECTIONS, find_model, parse_geometry
from mmcalib.models.checkpoint import SECTION_FILES

FACTS = Path(__file__).parent.parent / "mmcalib" / "models" / "facts"
TOKENIZER = "tokenizer_config.json"
FILES = {"config": "config.json", **SECTION_FILES}
DOUBTS = (
    "weights are dummy: no answer of the model means anything",
    "the tokenizer is generated (bytes and special tokens only): text token counts differ from the "
    "real one, item token counts do not",
    "the chat template is ours: same turn markers and placeholders, but no default system turn and "
    "no tools",
)
LEAF = {"value", "status", "source"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--add", nargs=2, metavar=("ID", "FOLDER"), required=True)
    parser.add_argument("--like", metavar="BUNDLED_ID", help="take all other facts from this model")
    arguments = parser.parse_args()
    model_id, folder = arguments.add
    document = _document(model_id, Path(folder), _raw(arguments.like) if arguments.like else {})
    parse_geometry(document)
    target = _path(model_id)
    target.write_text(_text(document) + "\n", encoding="utf-8")
    print(target)


def _path(model_id: str) -> Path:
    return FACTS / f"{model_id.rpartition('/')[2].lower()}.json"


def _raw(like: str) -> dict[str, Any]:
    geometry = find_model(like)
    if geometry is None:
        raise SystemExit(f"{like} is not bundled")
    raw: dict[str, Any] = json.loads(_path(geometry.id).read_text("utf-8"))
    return raw


def _document(model_id: str, folder: Path, base: dict[str, Any]) -> dict[str, Any]:
    given = json.loads((folder / "facts.json").read_text("utf-8"))
    given_values = {name: given[name] for name in SECTIONS if name in given}
    published = {
        section: json.loads((folder / file).read_text("utf-8"))
        for section, file in FILES.items()
        if (folder / file).is_file()
    }
    if (folder / TOKENIZER).is_file():
        published.update(_read_tokens(json.loads((folder / TOKENIZER).read_text("utf-8"))))
    architecture = published.get("config", {}).get("architectures", [base.get("architecture")])[0]
    document = {
        "id": model_id,
        "architecture": architecture,
        "modalities": given.get("modalities") or base["modalities"],
        "cannot_promise": [*base.get("cannot_promise", DOUBTS), *given.get("cannot_promise", ())],
        "sources": {**base.get("sources", {})},
    }
    taken = {
        f"own-{name}" if name in document["sources"] else name: name for name in given["sources"]
    }
    document["sources"].update({key: given["sources"][name][1] for key, name in taken.items()})
    keys = {name: key for key, name in taken.items()}
    for section in SECTIONS:
        facts = [
            _facts(section, values[section], given["sources"], keys)
            for values in (published, given_values)
            if section in values
        ]
        # A published file replaces the bundled model's; what facts.json adds is merged.
        kept = {} if section in published else base.get(section, {})
        if kept or facts:
            document[section] = functools.reduce(_merged, facts, kept)
    text = json.dumps([document[name] for name in SECTIONS if name in document])
    document["sources"] = {k: v for k, v in document["sources"].items() if f': "{k}"}}' in text}
    return document


def _read_tokens(tokenizer: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Special tokens, other added tokens, and the named ones."""
    added = tokenizer.get("added_tokens_decoder", {})
    sections = {
        name: {t["content"]: int(i) for i, t in added.items() if t["special"] is special}
        for name, special in (("tokens", True), ("words", False))
    }
    sections["tokenizer"] = {
        name: value["content"] if isinstance(value, dict) and "content" in value else value
        for name, value in tokenizer.items()
        if name.endswith("_token") or name in ("tokenizer_class", "extra_special_tokens")
    }
    return {name: values for name, values in sections.items() if values}


def _facts(
    name: str, value: Any, sources: dict[str, list[str]], keys: dict[str, str]
) -> dict[str, Any]:
    if isinstance(value, dict) and ".quantization_config." not in name:
        return {key: _facts(f"{name}.{key}", one, sources, keys) for key, one in value.items()}
    source = max((key for key in sources if f"{name}.".startswith(f"{key}.")), key=len)
    return {"value": value, "status": sources[source][0], "source": keys[source]}


def _merged(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    if over.keys() == LEAF or base.keys() == LEAF:
        return over
    both = {key: _merged(base[key], over[key]) for key in base.keys() & over.keys()}
    return {**base, **over, **both}


def _text(node: Any, indent: int = 0) -> str:
    """JSON with a fact a line."""
    if not isinstance(node, dict) or node.keys() == LEAF or not node:
        return json.dumps(node, ensure_ascii=False)
    pad = " " * (indent + 2)
    lines = (
        f"{pad}{json.dumps(key, ensure_ascii=False)}: {_text(one, indent + 2)}"
        for key, one in node.items()
    )
    return "{\n" + ",\n".join(lines) + f"\n{' ' * indent}}}"


if __name__ == "__main__":
    main()
