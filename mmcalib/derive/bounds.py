"""Rules that say what an item of a shape costs that was never measured, one per way of resizing.

Each is an independent formula over numbers of the model's own processor. None is used before it has
reproduced what vLLM's processor made of measured shapes (`mmcalib.admission.rules`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from mmcalib.domain.shapes import PLAIN, AudioShape, Encoding, ImageShape, Shape, VideoShape
from mmcalib.releases.constants import (
    QWEN_FRAMES_TOGETHER,
    QWEN_LEAST_FRAMES,
    QWEN_MOST_FPS,
    QWEN_MOST_FRAMES,
)

# Frames that a decoder may find beyond what the header promised, and that vLLM's float32 steps
# add to what they should sample.
FRAMES_SLACK = 2
# Resamplers differ by some samples in the length of what they return: a hundredth of a second.
_RESAMPLED_SLACK = 100

Loader = Literal["uniform", "qwen2_vl", "qwen3_vl"]


@dataclass(frozen=True, slots=True)
class Bound:
    """An item costs from `least_*` to these: tokens in the prompt, embeds in the encoder cache."""

    tokens: int
    embeds: int
    least_tokens: int
    least_embeds: int


@dataclass(frozen=True, slots=True)
class Refused:
    """The loader or the processor refuses every item of the shape."""

    reason: str
    remedy: str = ""


Found = Bound | Refused | None


@dataclass(frozen=True, slots=True)
class Area:
    """Each edge is rounded to whole cells of `factor_px`; more than `max_px` or less than `min_px`
    are scaled first: the resizing of the Qwen-VL processors, in their order of operations.

    `around_tokens` stand beside the image in the prompt and not in the encoder cache.
    """

    factor_px: int
    min_px: int
    max_px: int
    max_aspect: float
    around_tokens: int = 0
    kind: ClassVar[str] = "area"

    def bound(self, shape: Shape, encoding: Encoding = PLAIN) -> Found:
        """Exact, for images; other modalities are not this rule's."""
        if not isinstance(shape, ImageShape):
            return None
        if refused := self.refused(shape.width_px, shape.height_px):
            return refused
        embeds = self.cells(shape.width_px, shape.height_px)
        tokens = embeds + self.around_tokens
        return Bound(tokens, embeds, tokens, embeds)

    def refused(self, width: int, height: int) -> Refused | None:
        """Why the processor refuses a picture of this size, if it does."""
        ratio = max(width, height) / min(width, height)
        if ratio <= self.max_aspect:
            return None
        return Refused(f"sides of {ratio:.0f}:1, the processor takes {self.max_aspect:g}:1 at most")

    def cells(self, width: int, height: int, frames: int = 1, together: int = 1) -> int:
        """Cells of a picture, or a frame of a clip that shares the area, `together` a step."""
        across, down = self.resized(width, height, frames, together)
        return (down // self.factor_px) * (across // self.factor_px)

    def resized(
        self, width: int, height: int, frames: int = 1, together: int = 1
    ) -> tuple[int, int]:
        """The same picture's width and height in pixels, as the encoder gets it."""
        factor = self.factor_px
        # Python's rounding to even is the processor's too.
        down, across = round(height / factor) * factor, round(width / factor) * factor
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
    """No image costs more, whatever its size: the processor has one size, or a list of layouts.

    Proven for images whose short side is at least `min_side_px`, up to `max_aspect`.
    """

    tokens: int
    embeds: int
    min_side_px: int
    max_aspect: float
    kind: ClassVar[str] = "ceiling"

    def bound(self, shape: Shape, encoding: Encoding = PLAIN) -> Found:
        """None outside of what was proven."""
        if not isinstance(shape, ImageShape):
            return None
        short, long = sorted((shape.width_px, shape.height_px))
        if short < self.min_side_px or long / short > self.max_aspect:
            return None
        return Bound(self.tokens, self.embeds, 0, 0)


@dataclass(frozen=True, slots=True)
class Sampling:
    """How many frames vLLM's loader keeps of a video. -1: no such limit."""

    loader: Loader
    num_frames: int
    fps: float

    def frames(self, shape: VideoShape) -> int:
        """As many as the header promises; 0 where the loader refuses the video."""
        total = shape.num_frames
        if self.loader == "uniform":
            kept = min(self.num_frames, total) if self.num_frames > 0 else total
            if self.fps > 0:
                kept = min(kept, math.floor(total / shape.fps * self.fps))
            return max(1, kept)
        wanted = total / shape.fps * min(self.fps, QWEN_MOST_FPS)
        if self.loader == "qwen3_vl":
            return min(max(int(wanted), QWEN_LEAST_FRAMES), QWEN_MOST_FRAMES, total)
        most = min(QWEN_MOST_FRAMES, total) // QWEN_FRAMES_TOGETHER * QWEN_FRAMES_TOGETHER
        kept = math.floor(min(max(wanted, QWEN_LEAST_FRAMES), most, total))
        return kept // QWEN_FRAMES_TOGETHER * QWEN_FRAMES_TOGETHER

    def possible(self, shape: VideoShape, encoding: Encoding = PLAIN) -> Iterator[int]:
        """The promised number, then what the decoder may make of it; nothing where refused."""
        if encoding.sent_frames:
            # vLLM takes the first ones, whatever the loader (vllm/multimodal/media/video.py, 0.32).
            most = self.num_frames if self.num_frames > 0 else shape.num_frames
            yield min(most, shape.num_frames)
            return
        if encoding.unpromised:
            # OpenCV's count is below zero: one loader then takes the first frame, the others fail.
            if self.loader == "uniform":
                yield 1
            return
        if encoding.promised_frames:
            kept = self._present(shape, encoding.promised_frames)
            yield from range(kept, kept + FRAMES_SLACK)
            return
        promised = self.frames(shape)
        if not promised:
            return
        most = promised + FRAMES_SLACK
        if self.loader == "uniform" and self.num_frames > 0:
            most = min(most, self.num_frames)
        yield from range(promised, most + 1)

    def _present(self, shape: VideoShape, promised: int) -> int:
        """Of the frames that the loader picks among the promised ones, how many are there."""
        whole = replace(shape, num_frames=promised)
        picked = self.frames(whole)
        if self.loader == "qwen2_vl":
            steps = (int(n * promised / picked) for n in range(picked))
        else:
            apart = (promised - 1) / max(1, picked - 1)
            rounds = round if self.loader == "qwen3_vl" else math.floor
            steps = (rounds(n * apart) for n in range(picked))
        return sum(step < shape.num_frames for step in steps)


@dataclass(frozen=True, slots=True)
class Frames:
    """A video: every `together` frames make one step, and each step costs what a picture does.

    By `area`, which bounds each frame or, with `whole_clip`, all of them; else `step_embeds`
    whatever the size. `step_tokens` is the most that the prompt has beside each step. Proven for
    frames whose short side is at least `min_side_px`: processors take slimmer ones for channels.
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
    kind: ClassVar[str] = "frames"

    def bound(self, shape: Shape, encoding: Encoding = PLAIN) -> Found:
        """At least by the frames that the header promises, at most with some more."""
        if not isinstance(shape, VideoShape):
            return None
        if min(shape.width_px, shape.height_px) < self.min_side_px:
            return None
        if self.area and (refused := self.area.refused(shape.width_px, shape.height_px)):
            return refused
        counts = list(self.sampling.possible(shape, encoding))
        kept = counts[0] if counts else 0
        if not kept and encoding.unpromised:
            return Refused(
                "its header has no length, and the server's loader then takes no frame",
                "remux it: ffmpeg -i IN -c copy OUT",
            )
        if not kept or (self.whole_clip and kept < self.together):
            return Refused(f"of {shape.num_frames} frames the loader keeps {kept}: too few")
        costs = [self.embeds(frames, shape.width_px, shape.height_px) for frames in counts]
        pairs = list(zip(counts, costs, strict=True))
        tokens = max(embeds + self.beside(frames) for frames, embeds in pairs)
        return Bound(tokens, max(costs), costs[0], costs[0])

    def embeds(self, frames: int, width: int, height: int) -> int:
        """Of a clip of which the loader handed over this many frames."""
        steps = -(-frames // self.together)
        if self.area is None:
            return steps * self.step_embeds + self.around_embeds
        if not self.whole_clip:
            return steps * self.area.cells(width, height) + self.around_embeds
        factor = self.area.factor_px
        if min(width, height) < factor:
            scale = max(factor / height, factor / width)
            width, height = int(width * scale), int(height * scale)
        cells = self.area.cells(width, height, frames, self.together)
        return steps * cells + self.around_embeds

    def beside(self, frames: int) -> int:
        """Tokens in the prompt that are not in the encoder cache, at most."""
        return -(-frames // self.together) * self.step_tokens + self.around_tokens


@dataclass(frozen=True, slots=True)
class Rung:
    """What a blank clip of so many samples costs, measured."""

    samples: int
    tokens: int
    embeds: int


@dataclass(frozen=True, slots=True)
class Ladder:
    """A clip costs at most what the next longer measured one does, and at least what the next
    shorter one does; samples at the rate to which the server resamples. The processor refuses one
    of `refused_samples`, and so shorter ones.
    """

    rate_hz: int
    rungs: tuple[Rung, ...]
    refused_samples: int = 0
    kind: ClassVar[str] = "ladder"

    def bound(self, shape: Shape, encoding: Encoding = PLAIN) -> Found:
        """None for clips shorter than the first rung or longer than the last."""
        if not isinstance(shape, AudioShape):
            return None
        exact = shape.num_samples * self.rate_hz / shape.sample_rate_hz
        slack = self.rate_hz / _RESAMPLED_SLACK
        if exact + slack <= self.refused_samples:
            return Refused("a sound that is too short for the processor")
        above = [rung for rung in self.rungs if rung.samples >= exact + slack]
        below = [rung for rung in self.rungs if rung.samples <= exact - slack]
        if not above or not below:
            return None
        most, least = above[0], below[-1]
        return Bound(most.tokens, most.embeds, least.tokens, least.embeds)


Rule = Area | Ceiling | Frames | Ladder
