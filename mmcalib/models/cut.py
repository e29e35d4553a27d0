"""A copy of a checkpoint folder with the depth cut and the weights left out."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from mmcalib.errors import ModelError
from mmcalib.models.cut_config import cut_depth
from mmcalib.models.depth import Depths, depths
from mmcalib.models.folder import whole_folder
from mmcalib.wording import one_line

# Files of weights: their layers would not fit the cut config, and dummy weights need none.
WEIGHT_SUFFIXES = frozenset(
    {".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".gguf", ".h5", ".msgpack", ".onnx", ".npz"}
)

# The largest of the hub's take some 100 KB. Each value may take a hundred times its length.
MOST_CONFIG_BYTES = 1 << 24


@dataclass(frozen=True, slots=True)
class CutCheckpoint:
    """The new folder, the depths it has, and the true ones by which memory is scaled."""

    path: Path
    depths: Depths
    true_depths: Depths


def cut_checkpoint(
    source: Path, target: Path, *, text_layers: int | None, encoder_layers: int | None
) -> CutCheckpoint:
    """Writes `target` with the cut config.json and everything else of `source` but weights.

    Large files are hard-linked where that is possible. Raises ModelError when the source holds no
    readable config.json, OutputError when the target cannot be written.
    """
    true = read_config(source)
    cut = cut_depth(true, text_layers=text_layers, encoder_layers=encoder_layers)
    with whole_folder(target) as scratch:
        for path in sorted(source.rglob("*")):
            if path.is_file() and not _is_weight(path):
                copy = scratch / path.relative_to(source)
                copy.parent.mkdir(parents=True, exist_ok=True)
                _link_or_copy(path.resolve(), copy)
        config = scratch / "config.json"
        config.unlink()
        config.write_text(json.dumps(cut, indent=1) + "\n", encoding="utf-8")
    return CutCheckpoint(target, depths(cut), depths(true))


def read_config(folder: Path) -> dict[str, object]:
    """The folder's config.json. Raises ModelError when it is missing or not a JSON mapping."""
    try:
        with (folder / "config.json").open("rb") as file:
            text = file.read(MOST_CONFIG_BYTES + 1)
        if len(text) > MOST_CONFIG_BYTES:
            raise ModelError(f"{folder}/config.json has more than {MOST_CONFIG_BYTES >> 20} MiB")
        config = json.loads(text.decode())
    except RecursionError as error:
        raise ModelError(f"{folder}/config.json is nested too deeply") from error
    except (OSError, ValueError) as error:
        raise ModelError(one_line(f"{folder}/config.json cannot be read: {error}")) from error
    if not isinstance(config, dict):
        raise ModelError(f"{folder}/config.json is not a mapping")
    return config


def _is_weight(path: Path) -> bool:
    return path.suffix in WEIGHT_SUFFIXES or path.name.endswith(".index.json")


def _link_or_copy(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
