"""What sounds cost by their lengths alone: one is processed, the others are counted. And whether
librosa finds a sound as long as vLLM does.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence

import numpy as np

from mmcalib.child.media import load
from mmcalib.child.processor import Processor
from mmcalib.domain.shapes import AudioShape
from mmcalib.engine.messages import Blank, File
from mmcalib.releases import processors, sounds

# Embeds, and frames of features.
_Count = tuple[int | None, int | None]
# Frames of features of a sound of so many samples.
_Frames = Callable[[int], int]


def count_sounds(shapes: Sequence[AudioShape], under: Processor) -> list[_Count]:
    """Of each in order, as far as vLLM's code tells. A sound is resampled to the model's rate, and
    a frame of features begins at every hop.
    """
    try:
        return _counted(shapes, under) if shapes else []
    except Exception:  # noqa: BLE001 - then they are measured
        return [(None, None)] * len(shapes)


def _counted(shapes: Sequence[AudioShape], under: Processor) -> list[_Count]:
    rate_hz = processors.audio_rate_hz(under.processor)
    if rate_hz is None:
        return [(None, None)] * len(shapes)
    samples = [-(-shape.num_samples * rate_hz // shape.sample_rate_hz) for shape in shapes]
    framing = sounds.framing(under.processor)
    if framing is None:
        return [(number, None) for number in sounds.sound_embeds(under.processor, samples)]
    frames = list(map(_frames_rule(max(samples), rate_hz, *framing, under), samples))
    embeds = sounds.sound_embeds(under.processor, samples, frames)
    return list(zip(embeds, frames, strict=True))


def _frames_rule(most: int, rate_hz: int, hop: int, padded: int, under: Processor) -> _Frames:
    """As a sound that is a bit longer than `most` shows: whether the processor cuts it off, and
    whether it drops a last frame that is not whole of what is longer than it pads to.
    """

    def begun(samples: int) -> int:
        return -(-samples // hop)

    longest = begun(most) * hop + 1
    shown = _processed_frames(longest, rate_hz, under)
    if shown is None or shown == begun(longest):
        return begun
    if shown == longest // hop:
        return lambda samples: begun(samples) if samples <= padded else samples // hop
    return lambda samples: min(begun(samples), shown)


def _processed_frames(samples: int, rate_hz: int, under: Processor) -> int | None:
    media = np.zeros(samples, dtype=np.float32), rate_hz
    output = processors.apply_processor(
        under.processor, under.placeholder_ids("audio"), {"audio": [media]}
    )
    return sounds.feature_frames(output["mm_kwargs"]["audio"][0])


def resampled(subject: Blank | File, under: Processor) -> tuple[int, ...]:
    """Samples of a file of sound at the model's rate, by vLLM's loader and by librosa. Empty for
    other items, and without a librosa that reads it.
    """
    rate_hz = processors.audio_rate_hz(under.processor)
    if not isinstance(subject, File) or subject.modality != "audio" or rate_hz is None:
        return ()
    try:
        import librosa

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            heard, _ = librosa.load(subject.path, sr=rate_hz)
        return sounds.resampled_samples(under.processor, load(subject, under)[0]), len(heard)
    except Exception:  # noqa: BLE001 - a second opinion is welcome, and not needed
        return ()
