"""Into how many tiles an image is cut."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mmcalib.child.knobs.trial import Trial
from mmcalib.domain.knobs import Knob, TileCap

# InternVL and its heirs, Phi, MiniCPM-V, Llama 4 and Cohere: any of them only if it moves items.
_NAMES = ("max_dynamic_patch", "num_crops", "max_slice_nums", "max_patches")


def tiles(trial: Trial) -> Iterator[Knob]:
    """The most tiles of an image."""
    if "image" not in trial.modalities:
        return
    for name in _NAMES:
        for holder in _holders(trial.info):
            value = getattr(holder, name, None)
            if isinstance(value, int) and value > 1:
                yield from _knob(trial, name, value)
                break


def tiles_images(default: Any) -> bool:
    """Whether images are cut into tiles in one of a list of layouts: InternVL's numbers of tiles,
    LLaVA's list of sizes.
    """
    names = ("max_dynamic_patch", "image_grid_pinpoints")
    return any(getattr(holder, name, None) for holder in _holders(default.info) for name in names)


def _knob(trial: Trial, name: str, value: int) -> Iterator[Knob]:
    found = trial.of_images(name, tried=1)
    if found is not None:
        path, bleeds = found
        yield TileCap(path=path, value=value, bleeds=bleeds)


def _holders(info: Any) -> tuple[Any, ...]:
    processor = info.get_hf_processor()
    return getattr(processor, "image_processor", None), processor, info.get_hf_config()
