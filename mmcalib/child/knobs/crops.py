"""Pan-and-scan: crops of slim images beside the whole one (Gemma 3)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mmcalib.child.knobs.trial import Trial
from mmcalib.domain.knobs import CropCap

_SWITCH, _CROPS = "do_pan_and_scan", "pan_and_scan_max_num_crops"
# A slim image is cut into no fewer; one crop alone would be the image again.
_FEWEST = 2


def crops(trial: Trial) -> Iterator[CropCap]:
    """The most crops of an image; 0 switches them off, as most checkpoints do."""
    most = _default(trial, _CROPS)
    if "image" not in trial.modalities or not isinstance(most, int) or most < _FEWEST:
        return
    value = most if _default(trial, _SWITCH) else 0
    tried = 0 if value else _FEWEST
    paths = (("images_kwargs", _CROPS), (_CROPS,))
    found = trial.first([(path, {_SWITCH: bool(tried)}) for path in paths], tried, "image")
    if found is None:
        return
    (path, _), bleeds = found
    steps = (0, *range(_FEWEST, most + 1))
    yield CropCap(path=path, value=value, steps=steps, switch=_SWITCH, bleeds=bleeds)


def _default(trial: Trial, name: str) -> Any:
    """The checkpoint's own value, else that of the processor's class."""
    own = getattr(trial.part("image_processor"), name, None)
    if own is not None:
        return own
    accepted = getattr(trial.info.get_hf_processor(), "valid_processor_kwargs", None)
    return getattr(accepted, "_defaults", {}).get("images_kwargs", {}).get(name)
