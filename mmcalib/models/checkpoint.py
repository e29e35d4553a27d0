"""A checkpoint folder written from a geometry: everything vLLM reads, except weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from mmcalib.models.chat_template import chat_template
from mmcalib.models.cut_config import cut_depth
from mmcalib.models.fact import Geometry
from mmcalib.models.folder import whole_folder
from mmcalib.models.tokenizer import tokenizer_config, tokenizer_json

# Section of the fact file → file of the checkpoint; a model without the section has no such file.
SECTION_FILES = {
    "preprocessor": "preprocessor_config.json",
    "video_preprocessor": "video_preprocessor_config.json",
    "processor": "processor_config.json",
}


def materialise(
    geometry: Geometry,
    folder: Path,
    *,
    text_layers: int | None = None,
    encoder_layers: int | None = None,
) -> Path:
    """Writes the checkpoint folder and returns it; the same arguments write the same bytes.

    Layer counts cut the depth and nothing else; None keeps the true one. An existing folder with
    the same content is left alone, another is replaced whole. Load with `load_format=dummy`.
    """
    files = checkpoint_files(geometry, text_layers=text_layers, encoder_layers=encoder_layers)
    if not _holds(folder, files):
        with whole_folder(folder) as scratch:
            for name, content in files.items():
                (scratch / name).write_bytes(content)
    return folder


def checkpoint_files(
    geometry: Geometry, *, text_layers: int | None = None, encoder_layers: int | None = None
) -> dict[str, bytes]:
    """The folder's files by name, as bytes."""
    config = cut_depth(
        geometry.values("config"), text_layers=text_layers, encoder_layers=encoder_layers
    )
    special, words = geometry.values("tokens"), geometry.values("words")
    chat = geometry.values("chat")
    template = chat_template(chat, geometry.values("placeholders")) if chat else None
    documents = {
        "config.json": config,
        **{
            file: geometry.values(section)
            for section, file in SECTION_FILES.items()
            if section in geometry.sections
        },
        "tokenizer.json": tokenizer_json(special, words, vocab_size(config)),
        "tokenizer_config.json": tokenizer_config(
            geometry.values("tokenizer"), special, words, template
        ),
    }
    return {name: _encode(document) for name, document in documents.items()}


def vocab_size(config: dict[str, Any]) -> int:
    """The largest vocab_size that any part of the model declares; 0 when none does."""
    nested = (vocab_size(part) for part in config.values() if isinstance(part, dict))
    return max((int(config.get("vocab_size", 0)), *nested))


def _encode(document: dict[str, Any]) -> bytes:
    return (json.dumps(document, ensure_ascii=False, indent=1) + "\n").encode()


def _holds(folder: Path, files: dict[str, bytes]) -> bool:
    if not folder.is_dir() or {path.name for path in folder.iterdir()} != files.keys():
        return False
    return all((folder / name).read_bytes() == content for name, content in files.items())
