"""Rules for the cost of shapes that were never measured, one per way of resizing.

Each is an independent formula over numbers of the model's own processor, and is used only after it
reproduced the costs that vLLM's processor returned for measured shapes (`mmcalib.admission.rules`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from mmcalib.domain.shapes import PLAIN, AudioShape, Encoding, ImageShape, Shape, VideoShape
from mmcalib.releases.constants import (
    BY_RATE_FRAMES_PER_PATCH,
    BY_RATE_MAX_FPS,
    BY_RATE_MAX_FRAMES,
    BY_RATE_MIN_FRAMES,
)

# A decoder may find frames beyond those of the header, and vLLM's float32 steps may sample more.
FRAMES_SLACK = 2
# Resamplers return lengths that differ by some samples: a hundredth of a second.
_RESAMPLED_SLACK = 100
# The header may count an encoder's padding that FFmpeg drops, or the reverse: four frames of MP3.
_PADDING_SAMPLES = 4 * 1152

Loader = Literal["uniform", "qwen2_vl", "qwen3_vl"]
RuleBasis = Literal["formula", "ceiling", "ladder"]


@dataclass(frozen=True, slots=True)
class Bound:
    """Range of an item's cost: tokens in the prompt, embeds in the encoder cache."""

    tokens: int
    embeds: int
    least_tokens: int
    least_embeds: int


@dataclass(frozen=True, slots=True)
class ServerRefusal:
    """Why a server rejects a file, or every item of a shape; setting `variable`, if any, to `value`
    or more admits it. Not `sure`: it depends on sizes that are known in whole MiB only.
    """

    reason: str
    remedy: str = ""
    variable: str = ""
    value: int = 0
    sure: bool = True


BoundResult = Bound | ServerRefusal | None


@dataclass(frozen=True, slots=True)
class Area:
    """Each edge is rounded to whole cells of `factor_px`; areas above `max_px` or below `min_px`
    are scaled first: the resizing of the Qwen-VL processors, in their order of operations.

    `around_tokens` are in the prompt around the image, and not in the encoder cache. MiniMax-M3
    rounds no edge below `least_edge_px`.
    """

    factor_px: int
    min_px: int
    max_px: int
    max_aspect: float
    around_tokens: int = 0
    least_edge_px: int = 0
    basis: ClassVar[RuleBasis] = "formula"

    def bound(self, shape: Shape, encoding: Encoding = PLAIN) -> BoundResult:
        """Exact cost of an image; None for other modalities."""
        if not isinstance(shape, ImageShape):
            return None
        if refusal := self.find_refusal(shape.width_px, shape.height_px):
            return refusal
        embeds = self.cells(shape.width_px, shape.height_px)
        tokens = embeds + self.around_tokens
        return Bound(tokens, embeds, tokens, embeds)

    def find_refusal(self, width: int, height: int) -> ServerRefusal | None:
        """Why the processor rejects an image of this size, if it does."""
        ratio = max(width, height) / min(width, height)
        if ratio <= self.max_aspect:
            return None
        why = f"aspect ratio {ratio:.0f}:1, the processor takes at most {self.max_aspect:g}:1"
        return ServerRefusal(why)

    def cells(self, width: int, height: int, frames: int = 1, together: int = 1) -> int:
        """Cells of an image, or of a frame if `frames` share the area, `together` in a step."""
        across, down = self.resize(width, height, frames, together)
        return (down // self.factor_px) * (across // self.factor_px)

    def resize(
        self, width: int, height: int, frames: int = 1, together: int = 1
    ) -> tuple[int, int]:
        """Width and height in pixels after resizing, as the encoder receives it."""
        factor = self.factor_px
        # Python rounds half to even, as the processor does.
        down, across = (
            max(self.least_edge_px, round(edge / factor) * factor) for edge in (height, width)
        )
        volume = round(frames / together) * together * down * across
        if volume > self.max_px:
            shrink = math.sqrt((frames * height * width) / self.max_px)
            down = max(factor, math.floor(height / shrink / factor) * factor)
            across = max(factor, math.floor(width / shrink / factor) * factor)
        elif volume < self.min_px:
            grow = math.sqrt(self.min_px / (frames * height * width))
            down = math.ceil(height * grow / factor) * factor
            across = math.ceil(width * grow / factor) * factor
        return across, down


@dataclass(frozen=True, slots=True)
class Ceiling:
    """Maximum over all images of a processor with one size, or a list of layouts; verified for
    short sides of at least `min_side_px`, up to `max_aspect`.
    """

    tokens: int
    embeds: int
    min_side_px: int
    max_aspect: float
    basis: ClassVar[RuleBasis] = "ceiling"

    def bound(self, shape: Shape, encoding: Encoding = PLAIN) -> BoundResult:
        """The maximum, or None outside the verified range."""
        if not isinstance(shape, ImageShape):
            return None
        short, long = sorted((shape.width_px, shape.height_px))
        if short < self.min_side_px or long / short > self.max_aspect:
            return None
        return Bound(self.tokens, self.embeds, 0, 0)


@dataclass(frozen=True, slots=True)
class Sampling:
    """Frames that vLLM's loader returns of a video. -1: no limit."""

    loader: Loader
    num_frames: int
    fps: float

    def frames(self, shape: VideoShape) -> int:
        """Frames if the header is right; 0 if the loader rejects the video."""
        total = shape.num_frames
        if self.loader == "uniform":
            count = min(self.num_frames, total) if self.num_frames > 0 else total
            if self.fps > 0:
                count = min(count, math.floor(total / shape.fps * self.fps))
            return max(1, count)
        wanted = total / shape.fps * min(self.fps, BY_RATE_MAX_FPS)
        if self.loader == "qwen3_vl":
            return min(max(int(wanted), BY_RATE_MIN_FRAMES), BY_RATE_MAX_FRAMES, total)
        most = min(BY_RATE_MAX_FRAMES, total) // BY_RATE_FRAMES_PER_PATCH * BY_RATE_FRAMES_PER_PATCH
        count = math.floor(min(max(wanted, BY_RATE_MIN_FRAMES), most, total))
        return count // BY_RATE_FRAMES_PER_PATCH * BY_RATE_FRAMES_PER_PATCH

    def possible_frames(self, shape: VideoShape, encoding: Encoding = PLAIN) -> Iterator[int]:
        """The count by the header, then others the decoder may return; empty if rejected."""
        if encoding.sent_frames:
            # vLLM takes the first ones with any loader (vllm/multimodal/media/video.py, 0.32).
            cut = 0 < self.num_frames < shape.num_frames and not encoding.all_frames
            yield self.num_frames if cut else shape.num_frames
            return
        if encoding.unpromised:
            # OpenCV's count is negative: one loader then takes the first frame, the others fail.
            if self.loader == "uniform":
                yield 1
            return
        if encoding.promised_frames:
            count = self._count_present(shape, encoding.promised_frames)
            yield from range(count, count + FRAMES_SLACK)
            return
        promised = self.frames(shape)
        if not promised:
            return
        most = promised + FRAMES_SLACK
        if self.loader == "uniform" and self.num_frames > 0:
            most = min(most, self.num_frames)
        yield from range(promised, most + 1)

    def _count_present(self, shape: VideoShape, promised: int) -> int:
        """Count the frames in the file among those that the loader picks by the header."""
        picked = self.frames(replace(shape, num_frames=promised))
        if self.loader == "qwen2_vl":
            steps = (int(n * promised / picked) for n in range(picked))
        else:
            apart = (promised - 1) / max(1, picked - 1)
            rounds = round if self.loader == "qwen3_vl" else math.floor
            steps = (rounds(n * apart) for n in range(picked))
        return sum(step < shape.num_frames for step in steps)


@dataclass(frozen=True, slots=True)
class Frames:
    """A video: every `together` frames are one step, and each step costs as much as an image.

    By `area`, which limits each frame or, with `whole_clip`, all of them; otherwise `step_embeds`
    for every size. `step_tokens` is the most that the prompt adds for each step. Verified for
    frames whose short side is at least `min_side_px`: processors take narrower ones for channels.
    """

    sampling: Sampling
    together: int
    area: Area | None
    whole_clip: bool = False
    min_side_px: int = 8
    step_embeds: int = 0
    step_tokens: int = 0
    around_embeds: int = 0
    around_tokens: int = 0
    basis: ClassVar[RuleBasis] = "formula"

    def bound(self, shape: Shape, encoding: Encoding = PLAIN) -> BoundResult:
        """From the frames that the header promises to some more."""
        if not isinstance(shape, VideoShape):
            return None
        if min(shape.width_px, shape.height_px) < self.min_side_px:
            return None
        if self.area and (refusal := self.area.find_refusal(shape.width_px, shape.height_px)):
            return refusal
        counts = list(self.sampling.possible_frames(shape, encoding))
        count = counts[0] if counts else 0
        if not count and encoding.unpromised:
            return ServerRefusal(
                "its header has no length, so the server's loader reads no frame",
                "remux it: ffmpeg -i IN -c copy OUT",
            )
        if not count or (self.whole_clip and count < self.together):
            why = f"the loader returns {count} of {shape.num_frames} frames: too few"
            return ServerRefusal(why)
        costs = [self.embeds(frames, shape.width_px, shape.height_px) for frames in counts]
        tokens = max(e + self.tokens_around(n) for n, e in zip(counts, costs, strict=True))
        return Bound(tokens, max(costs), costs[0], costs[0])

    def embeds(self, frames: int, width: int, height: int) -> int:
        """Embeds of a clip from which the loader returned `frames`."""
        steps = -(-frames // self.together)
        if self.area is None:
            return steps * self.step_embeds + self.around_embeds
        if not self.whole_clip:
            return steps * self.area.cells(width, height) + self.around_embeds
        factor = self.area.factor_px
        if min(width, height) < factor:
            scale = max(factor / height, factor / width)
            width, height = int(width * scale), int(height * scale)
        return steps * self.area.cells(width, height, frames, self.together) + self.around_embeds

    def tokens_around(self, frames: int) -> int:
        """The most tokens in the prompt that are not in the encoder cache."""
        return -(-frames // self.together) * self.step_tokens + self.around_tokens


@dataclass(frozen=True, slots=True)
class Rung:
    """Measured cost of a blank clip of `samples`."""

    samples: int
    tokens: int
    embeds: int


@dataclass(frozen=True, slots=True)
class Ladder:
    """A clip costs at most as much as the next longer measured one, and at least as much as the
    next shorter one; samples are at the server's resampling rate. The processor rejected a clip of
    `refused_samples`, so it rejects shorter ones.
    """

    rate_hz: int
    rungs: tuple[Rung, ...]
    refused_samples: int = 0
    basis: ClassVar[RuleBasis] = "ladder"

    def bound(self, shape: Shape, encoding: Encoding = PLAIN) -> BoundResult:
        """None if shorter than the first rung or longer than the last."""
        if not isinstance(shape, AudioShape):
            return None
        scale = self.rate_hz / shape.sample_rate_hz
        slack = 0 if scale == 1 else self.rate_hz / _RESAMPLED_SLACK
        padding = _PADDING_SAMPLES * scale if encoding.sample_format else 0
        longest, shortest = shape.num_samples * scale + slack, shape.num_samples * scale - slack
        if longest + padding <= self.refused_samples:
            return ServerRefusal("audio that is too short for the processor")
        above = [rung for rung in self.rungs if rung.samples >= longest + padding]
        below = [rung for rung in self.rungs if rung.samples <= shortest]
        if not above or not below:
            return None
        surely = [rung for rung in below if rung.samples <= shortest - padding]
        most, least = above[0], (surely or below[:1])[-1]
        return Bound(most.tokens, most.embeds, least.tokens, least.embeds)


Rule = Area | Ceiling | Frames | Ladder
