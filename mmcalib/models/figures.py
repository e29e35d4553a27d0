"""What vLLM makes of each bundled model, found once and kept: tokens, knobs, weights, and the
smallest GPU on which it starts. `benchmarks/model_figures.py` finds them anew.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from mmcalib.domain.shapes import AudioShape, ImageShape, Modality, Shape, VideoShape

FILE = "figures.json"
# Of which the tokens are kept: a megapixel, and a minute of video and of sound.
USUAL: Mapping[Modality, Shape] = {
    "image": ImageShape(1024, 1024),
    "video": VideoShape(1800, 30.0, 60.0, 1280, 720),
    "audio": AudioShape(60 * 16_000, 16_000),
}


@dataclass(frozen=True, slots=True)
class ModelFigures:
    """Measured: `tokens` of the `USUAL` item of each modality that vLLM takes, and `knobs` by their
    names. Rehearsed, by that release of vLLM: `weights_bytes`, None where it builds no model here,
    and the GPU of the catalogue with the least memory on which the model starts, by vLLM's own
    defaults (`default_gpu`) and with `calibrated`, engine arguments that mmcalib derived; None
    where no single GPU is enough.
    """

    id: str
    vllm: str
    tokens: Mapping[Modality, int]
    knobs: tuple[str, ...]
    weights_bytes: int | None
    default_gpu: str | None
    calibrated: Mapping[str, Any]
    calibrated_gpu: str | None


@cache
def kept() -> Mapping[str, ModelFigures]:
    """By the model's id."""
    text = (resources.files("mmcalib.models") / FILE).read_text(encoding="utf-8")
    found = (ModelFigures(**{**one, "knobs": tuple(one["knobs"])}) for one in json.loads(text))
    return {one.id: one for one in found}
