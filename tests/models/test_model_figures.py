"""What is kept of every bundled model, as far as it can be judged without vLLM."""

from __future__ import annotations

import pytest

from mmcalib.gpus.catalogue import find as find_gpu
from mmcalib.models import Geometry, bundled
from mmcalib.models.figures import kept

# vLLM's default of max_num_batched_tokens on a GPU of less than 70 GiB (vllm/engine/arg_utils.py).
SMALLEST_STEP = 2048

each_model = pytest.mark.parametrize(
    "geometry", [one for one in bundled() if one.id in kept()], ids=lambda g: g.id
)


def test_there_are_figures_of_every_bundled_model_and_of_no_other() -> None:
    assert list(kept()) == [geometry.id for geometry in bundled()], "make figures"


@each_model
def test_every_modality_has_its_tokens(geometry: Geometry) -> None:
    figures = kept()[geometry.id]
    assert set(figures.tokens) >= set(geometry.modalities)
    assert all(tokens > 0 for tokens in figures.tokens.values())


@each_model
def test_a_calibrated_configuration_starts_on_no_larger_gpu(geometry: Geometry) -> None:
    """It is for one image in 8,192 tokens of context; both need the weights at least. A step that
    was made larger than vLLM's own, so that it holds whole images, may need more.
    """
    figures = kept()[geometry.id]
    assert figures.calibrated["max_model_len"] <= 8192
    if figures.weights_bytes is None:
        assert (figures.default_gpu, figures.calibrated_gpu) == (None, None)
        return
    for name in filter(None, (figures.default_gpu, figures.calibrated_gpu)):
        assert find_gpu(name).total_bytes > figures.weights_bytes
    if figures.default_gpu is not None:
        assert figures.calibrated_gpu is not None
        if figures.calibrated["max_num_batched_tokens"] > SMALLEST_STEP:
            return
        least = find_gpu(figures.calibrated_gpu).total_bytes
        assert least <= find_gpu(figures.default_gpu).total_bytes


def test_what_is_known_without_arithmetic() -> None:
    """A square of 1,024 pixels in cells of 28, rounded to the nearest; 30 s of Whisper."""
    assert kept()["zai-org/GLM-OCR"].tokens["image"] == (1036 // 28) ** 2
    assert kept()["openai/whisper-large-v3"].tokens["audio"] == 1500
