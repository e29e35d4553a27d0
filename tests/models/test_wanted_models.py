"""Which bundled models are left by a search."""

from __future__ import annotations

from typing import Any

import pytest

from mmcalib.gpus.catalogue import find as find_gpu
from mmcalib.models import Geometry
from mmcalib.models.figures import ModelFigures
from mmcalib.models.wanted_models import WantedModels

GIB = 1 << 30
GEOMETRY = Geometry("Qwen/Qwen3-VL-8B-Instruct", "A", ("image", "video"), (), {})
FIGURES = ModelFigures(
    GEOMETRY.id, "0.32.0", {"image": 1024}, (), 16 * GIB, "H100-80G", {}, "RTX-4090"
)
UNKNOWN = ModelFigures(GEOMETRY.id, "0.32.0", {"image": 1024}, (), None, None, {}, None)


@pytest.mark.parametrize(
    ("wanted", "fits"),
    [
        ({}, True),
        ({"words": ("qwen3", "8b")}, True),
        ({"words": ("qwen3", "32b")}, False),
        ({"modalities": ("video", "image")}, True),
        ({"modalities": ("video", "audio")}, False),
        ({"max_weights_bytes": 16 * GIB}, True),
        ({"max_weights_bytes": 16 * GIB - 1}, False),
        ({"gpu": find_gpu("RTX-4090")}, True),
        ({"gpu": find_gpu("H100-80G")}, True),
        ({"gpu": find_gpu("L4")}, False),
        ({"words": ("qwen3",), "modalities": ("audio",)}, False),
    ],
)
def test_all_that_is_said_must_hold(wanted: dict[str, Any], fits: bool) -> None:
    assert WantedModels(**wanted).fits(GEOMETRY, FIGURES) is fits


@pytest.mark.parametrize("figures", [None, UNKNOWN])
def test_what_is_not_known_is_left_out_where_it_is_asked_for(figures: ModelFigures | None) -> None:
    assert WantedModels(words=("qwen3",), modalities=("image",)).fits(GEOMETRY, figures)
    assert not WantedModels(max_weights_bytes=10**15).fits(GEOMETRY, figures)
    assert not WantedModels(gpu=find_gpu("B300")).fits(GEOMETRY, figures)
