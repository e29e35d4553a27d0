"""The largest clip that loader and processor make of anything, by vLLM's own count of its size."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any

from mmcalib.child.counting import counter
from mmcalib.child.media import load
from mmcalib.child.processor import Processor
from mmcalib.domain.knobs import Setting
from mmcalib.domain.memory import Clip
from mmcalib.domain.shapes import VideoShape
from mmcalib.engine.messages import Blank

# Clips that a sampler thins out whether it goes by frames or by seconds: a loader that keeps
# equally many of all has a most.
_LONG = ((12_000, 30.0), (24_000, 30.0), (12_000, 1.0))
_SIDE_PX = 8
# Sides from one patch to what no camera has.
_SIDES_PX = tuple(16 << step for step in range(10))
# Wider than any camera or screen (32:9). Frames of up to 200:1 are taken, and many of them round to
# several times what a cap of the whole clip promises (`smart_resize` of Qwen3-VL: each side is one
# cell at least); a worst step of such clips would be of no use to anybody.
_MOST_ASPECT = 4
_FEWER = (1, 4, 16, 64)

_Key = tuple[str, str]
_known: dict[_Key, Clip | None] = {}


def largest_clip(config: Any, processor: Any) -> Clip | None:
    """The clip of most embeds under this model config; None where the loader keeps any number of
    frames, or the model has no count.
    """
    mm = config.multimodal_config
    setting = Setting(dict(mm.mm_processor_kwargs or {}), dict(mm.media_io_kwargs or {}))
    key = (str(config.model), setting.key)
    if key not in _known:
        _known[key] = _largest(Processor(config, processor, setting))
    return _known[key]


def _largest(under: Processor) -> Clip | None:
    count = counter("video", under)
    most = None if count is None else _most_frames(under)
    if count is None or most is None:
        return None
    return max(_counted(count, most), key=lambda clip: clip.embeds, default=None)


def _most_frames(under: Processor) -> int | None:
    kept = set()
    for frames, fps in _LONG:
        shape = VideoShape(frames, fps, frames / fps, _SIDE_PX, _SIDE_PX)
        try:
            kept.add(load(Blank(shape), under)[1][0])
        except Exception:  # noqa: BLE001 - a loader that refuses it says nothing of its most
            return None
    return kept.pop() if len(kept) == 1 else None


def _counted(count: Callable[..., int], most_frames: int) -> Iterator[Clip]:
    """Of every size at the most frames, and at fewer: where a cap bounds the whole clip, these
    round less of it away.
    """
    pairs = itertools.combinations_with_replacement(_SIDES_PX, 2)
    sizes = [(low, high) for low, high in pairs if high <= low * _MOST_ASPECT]
    for frames in sorted({max(1, most_frames // fewer) for fewer in _FEWER}):
        for height, width in sizes:
            # What the processor refuses is no clip.
            with contextlib.suppress(Exception):
                embeds = count(image_width=width, image_height=height, num_frames=frames)
                yield Clip(int(embeds), frames, width, height)
