"""The bundled models: their facts, with sources, and a search by id."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from mmcalib.models.cut import text_sections
from mmcalib.text import dotted

Status = Literal["found", "inferred", "transformers-default", "stand-in"]
STATUSES: tuple[str, ...] = get_args(Status)
_FOLDER = Path(__file__).parent
SECTIONS = (
    *("config", "preprocessor", "video_preprocessor", "processor"),
    *("tokens", "words", "tokenizer", "placeholders", "chat"),
)


@dataclass(frozen=True, slots=True)
class Fact:
    """One value of a checkpoint's files, with its source.

    found: read in a stored copy; inferred: a sibling's, or computed; transformers-default: set by
    the class; stand-in: chosen by mmcalib, as the true value is unavailable or does not load.
    """

    value: Any
    status: Status
    source: str


Facts: TypeAlias = Mapping[str, "Fact | Facts"]


@dataclass(frozen=True, slots=True)
class Geometry:
    """The facts of one model, enough to write a checkpoint folder without weights."""

    id: str
    architecture: str
    modalities: tuple[str, ...]
    cannot_promise: tuple[str, ...]
    sections: Mapping[str, Facts]
    # What stands for facts that are not here.
    assumed: str = ""

    def facts(self) -> Iterator[tuple[str, Fact]]:
        """Yield every fact with its dotted name, such as `config.vision_config.depth`."""
        return dotted(self.sections)

    def values(self, section: str) -> dict[str, Any]:
        """Return a section as in the checkpoint's files, without sources; {} if it is missing."""
        return _strip(self.sections.get(section, {}))


def parse_geometry(document: Mapping[str, Any]) -> Geometry:
    """Parse a fact file. Raises KeyError or ValueError for a missing status or source."""
    sources = document["sources"]
    return Geometry(
        id=document["id"],
        architecture=document["architecture"],
        modalities=tuple(document["modalities"]),
        cannot_promise=tuple(document["cannot_promise"]),
        sections={
            name: _parse_facts(document[name], sources) for name in SECTIONS if name in document
        },
    )


def _parse_facts(raw: Mapping[str, Any], sources: Mapping[str, str]) -> Facts:
    facts: dict[str, Fact | Facts] = {}
    for name, node in raw.items():
        if not isinstance(node, dict):
            raise ValueError(f"{name}: the value has no status and source")
        if node.keys() == {"value", "status", "source"}:
            if node["status"] not in STATUSES:
                raise ValueError(f"{name}: unknown status {node['status']!r}")
            facts[name] = Fact(node["value"], node["status"], sources[node["source"]])
        else:
            facts[name] = _parse_facts(node, sources)
    return facts


def _strip(facts: Facts) -> dict[str, Any]:
    return {
        name: node.value if isinstance(node, Fact) else _strip(node) for name, node in facts.items()
    }


@cache
def bundled_models() -> tuple[Geometry, ...]:
    """Return every bundled geometry, sorted by id."""
    documents = (json.loads(file.read_bytes()) for file in _FOLDER.glob("facts/*.json"))
    return tuple(sorted(map(parse_geometry, documents), key=lambda geometry: geometry.id.lower()))


def find_model(model_id: str) -> Geometry | None:
    """Return the geometry with that id or last part of an id, ignoring case; None if missing."""
    lowered = model_id.lower()
    for geometry in bundled_models():
        full = geometry.id.lower()
        if lowered in (full, full.rpartition("/")[2]):
            return geometry
    return None


# From here on, a name says how the weights are stored: `-AWQ-4bit`, `-FP8-dynamic`.
_WEIGHTS = re.compile(
    r"[-_.](?:awq|gptq|qat|bnb|gguf|exl\d|quantized|unsloth|autoround|(?:nv|mx)?fp\d+|bf16"
    r"|u?int\d+|\d+-?bits?|w\d+a\d+)(?![a-z]).*"
)
# `35b`, `a3b`, `e2b`, `450m`.
_SIZE = re.compile(r"(?<![a-z0-9.])[ae]?\d+(?:\.\d+)?[bm](?![a-z0-9])")


def suggest_model(unknown: str, architecture: str | None = None) -> str:
    """Return what to type instead of an unknown id or path; empty if no bundled model is like it.

    The same name comes first, also of a build that can be assumed, then the same name with other
    weights. Any other has the architecture if it is known, and the sizes in the name.
    """
    wanted = unknown.lower().replace("___", ".").rstrip("/").rpartition("/")[2]
    names = {
        one.id: one.id.lower().rpartition("/")[2]
        for one in bundled_models()
        if architecture in (None, one.architecture)
    }
    base, sizes = _WEIGHTS.sub("", wanted), set(_SIZE.findall(wanted))
    twins = [one for one, name in names.items() if _WEIGHTS.sub("", name) == base]
    if twins:
        twin = min(twins, key=lambda one: (names[one] != wanted, len(one)))
        if names[twin] == wanted:
            return f"--model {twin}"
        if assume_build(unknown.rstrip("/")):
            return f"--model {unknown.rstrip('/').rpartition('/')[2]}"
        return f"--model {twin}, the same name with other weights"
    of_size = [name for name in names.values() if sizes <= set(_SIZE.findall(name))]
    longer = [name for name in of_size if wanted and wanted in name]
    pool = of_size or (list(names.values()) if architecture else [])
    least = 0.0 if architecture else 0.75
    near = longer or difflib.get_close_matches(base, pool, n=1, cutoff=least)
    like = next((one for one, name in names.items() if name in near[:1]), None)
    return f"mmcalib list models shows the bundled ones, such as {like}" if like else ""


def assume_build(model_id: str) -> Geometry | None:
    """Return the bundled model that this id names, with the usual quantization of its ending.

    None if the rest is not the name of one bundled model, or the ending has no usual quantization.
    """
    build = model_id.lower()
    name = _WEIGHTS.sub("", build.rpartition("/")[2])
    twins = [one for one in bundled_models() if one.id.lower().rpartition("/")[2] == name]
    if len(twins) != 1 or build.endswith(name):
        return None
    key, known = f"{build} {twins[0].architecture}", (_FOLDER / "quantizations.json").read_bytes()
    usual = next((one for one in json.loads(known) if re.fullmatch(one["builds"], key)), None)
    if usual is None:
        return None
    config = {
        **twins[0].sections["config"],
        "quantization_config": Fact(usual["config"], "inferred", usual["source"]),
    }
    return replace(
        twins[0],
        id=model_id,
        sections={**twins[0].sections, "config": config},
        assumed=f"{twins[0].id} with {usual['words']}",
    )


def quantized_twins(config: Mapping[str, Any]) -> list[str]:
    """Return bundled quantized checkpoints of the model with this config."""

    def size(config: Mapping[str, Any]) -> tuple[Any, ...]:
        *_, text = text_sections(dict(config))
        return config.get("architectures"), *map(text.get, ("hidden_size", "num_hidden_layers"))

    return [
        one.id
        for one in bundled_models()
        if "quantization_config" in one.sections["config"]
        and size(one.values("config")) == size(config)
    ]
