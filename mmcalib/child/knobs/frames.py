"""How many frames vLLM's loader keeps of a video."""

from __future__ import annotations

from collections.abc import Iterator

from mmcalib.child.knobs.trial import Trial
from mmcalib.child.media import load
from mmcalib.child.processor import Processor
from mmcalib.domain.knobs import FrameSampling
from mmcalib.domain.setting import Setting
from mmcalib.domain.shapes import VideoShape
from mmcalib.engine.messages import Blank

# A clip that every sampler has to thin out: half a minute at 30 frames a second.
_CLIP = VideoShape(num_frames=900, fps=30.0, duration_s=30.0, width_px=64, height_px=64)
# Values that are tried: so many equal steps up to the default.
_STEPS = 8


def frames(trial: Trial) -> Iterator[FrameSampling]:
    """The loader's `num_frames` or `fps`: whichever of them the model's own loader heeds."""
    if "video" not in trial.modalities:
        return
    kept = _sampled_frames(trial.default)
    for name, tried in (("num_frames", 8), ("fps", 1)):
        now = _sampled_frames(trial.under(Setting(media_io_kwargs={"video": {name: tried}})))
        if now == kept:
            continue
        value = kept if name == "num_frames" else _whole(kept / _CLIP.duration_s)
        parts = [value * step / _STEPS for step in range(1, _STEPS + 1)]
        steps = {_whole(part) if name == "fps" else max(1, round(part)) for part in parts}
        yield FrameSampling(path=("video", name), value=value, steps=tuple(sorted(steps)))
        return


def _sampled_frames(processor: Processor) -> int:
    return load(Blank("video", _CLIP), processor)[1][0]


def _whole(value: float) -> int | float:
    """2.0 as 2, the way that people write it; other values as they are."""
    return int(value) if value == int(value) else value
