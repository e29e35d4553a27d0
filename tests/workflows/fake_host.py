"""A pretend Qwen-VL behind the seam of `EngineHost`: `ask` and `measure`, by arithmetic alone."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from mmcalib.domain.knobs import AreaCap, Knob, Setting, TileCap
from mmcalib.domain.memory import Budget, Dummy
from mmcalib.domain.model import Cost, ModelInfo
from mmcalib.domain.shapes import AudioShape, ImageShape, Modality, Shape, VideoShape
from mmcalib.engine.messages import (
    Blank,
    BoundTexts,
    ComputeBudget,
    CountEmbeds,
    CountTexts,
    EmbedCounts,
    File,
    Measure,
    Measured,
)
from mmcalib.errors import VllmRefused
from tests import builders
from tests.builders import BOUND, area_cap

EDGE = 28
UNIT = EDGE * EDGE
TOKENS = {"image": 16384, "video": 768}  # defaults, per image and per frame
FRAMES = 32
AUDIO_HZ, SAMPLES_PER_TOKEN, AUDIO_TOKENS = 16000, 640, 750
ANY = 999
TOKEN_BYTES = 1176 * 4


def area_knob(modality: Modality) -> AreaCap:
    return area_cap(modality, TOKENS[modality])


KNOBS = (area_knob("image"), area_knob("video"))
INERT = TileCap(path=("num_crops",), value=3)


def opened(
    modalities: Mapping[Modality, int | None] | None = None,
    *,
    knobs: tuple[Knob, ...] = KNOBS,
    max_model_len: int = 128_000,
    chunks: bool = True,
) -> ModelInfo:
    return ModelInfo(
        architecture="PretendVL",
        modalities=dict(modalities or {"image": None, "video": None, "audio": None}),
        max_model_len=max_model_len,
        knobs=knobs,
        serve_defaults={"max_num_batched_tokens": 2048, "max_num_seqs": 128},
        chunks_mm_input=chunks,
        video_loader=None,
        audio_rate_hz=AUDIO_HZ,
        device="cpu",
        starts_engines=True,
        versions={"vllm": "0", "transformers": "0", "torch": "0", "python": "0"},
    )


class FakeHost:
    """`files` gives the true shape of a file where its name does not; a None cannot be loaded."""

    def __init__(self, model: ModelInfo, files: Mapping[str, Shape | None] | None = None) -> None:
        self._model, self._files = model, dict(files or {})
        self.asked = 0
        self.texts = 0

    def ask(
        self, request: ComputeBudget | CountEmbeds | BoundTexts | CountTexts, doing: str
    ) -> Any:
        if isinstance(request, BoundTexts):
            return BOUND
        if isinstance(request, CountTexts):
            return self.count_texts(request)
        if isinstance(request, CountEmbeds):
            return self.count(request)
        self.asked += 1
        return budget(self._model, request.engine_args, build_dummy=request.build_dummy)

    def measure(self, request: Measure, doing: str) -> Iterator[Measured]:
        for subject in request.subjects:
            shape = self._shape(subject)
            if shape is None:
                yield Measured(None, "cannot identify image file")
            elif isinstance(shape, ImageShape) and slenderness(shape) > 200:
                yield Measured(None, "absolute aspect ratio must be smaller than 200")
            elif _lone_edge(request.setting.mm_processor_kwargs, shape.modality):
                yield Measured(None, "`size` dict must contain both edges")
            else:
                video = request.setting.media_io_kwargs.get("video", {})
                kept = _thinned(shape, video.get("num_frames", FRAMES))
                yield Measured(self.cost(kept, request.setting.mm_processor_kwargs))

    def count_texts(self, request: CountTexts) -> tuple[int, ...]:
        self.texts += len(request.requests)
        found = [request.measure_context() for request in request.requests]
        return tuple((one.text_bytes - 5 * one.messages) // 4 for one in found)

    def count(self, request: CountEmbeds) -> EmbedCounts:
        """Count as the processor would; `Miscounting` does not."""
        kwargs = request.setting.mm_processor_kwargs
        frames = request.setting.media_io_kwargs.get("video", {}).get("num_frames", FRAMES)
        costs = [self.cost(_thinned(blank.shape, frames), kwargs) for blank in request.subjects]
        return EmbedCounts(tuple(c.embeds for c in costs), tuple(c.sampled for c in costs))

    def cost(self, shape: Shape, kwargs: Mapping[str, Any]) -> Cost:
        return cost(shape, kwargs)

    def _shape(self, subject: Blank | File) -> Shape | None:
        if isinstance(subject, Blank):
            return subject.shape
        return self._files[subject.path]


class Uncounted(FakeHost):
    """A model for which vLLM has no count."""

    def count(self, request: CountEmbeds) -> EmbedCounts:
        return EmbedCounts((None,) * len(request.subjects), ((),) * len(request.subjects))


class Miscounting(FakeHost):
    """Its count knows nothing of a cap: right by default, wrong under any setting."""

    def count(self, request: CountEmbeds) -> EmbedCounts:
        return super().count(replace(request, setting=Setting()))


class UncappedHost(FakeHost):
    """Its largest item is counted without the caps of its dummy, as by 0.28."""

    def ask(self, request: Any, doing: str) -> Any:
        answer = super().ask(request, doing)
        if not isinstance(request, ComputeBudget):
            return answer
        args = {k: v for k, v in request.engine_args.items() if k != "mm_processor_kwargs"}
        usual = budget(self._model, args, build_dummy=request.build_dummy)
        return replace(usual, dummies=answer.dummies)


class VolumeHost(FakeHost):
    """Its video cap bounds all frames together, as Qwen3-VL's does, under the same name."""

    def cost(self, shape: Shape, kwargs: Mapping[str, Any]) -> Cost:
        if not isinstance(shape, VideoShape):
            return cost(shape, kwargs)
        kept = shape.num_frames
        whole = cap("video", kwargs) if kwargs else TOKENS["video"] * UNIT * FRAMES
        each = max(4 * UNIT, whole // kept)
        return cost(shape, {"videos_kwargs": {"size": {"longest_edge": each}}})


def _thinned(shape: Shape, frames: int) -> Shape:
    """Return the clip that a loader hands over which keeps `frames`."""
    if not isinstance(shape, VideoShape):
        return shape
    return replace(shape, num_frames=min(frames, shape.num_frames))


def cap(modality: str, kwargs: Mapping[str, Any]) -> int:
    """The cap of an image or frame in pixels."""
    size = kwargs.get(f"{modality}s_kwargs", {}).get("size", {})
    return int(size.get("longest_edge", TOKENS[modality] * UNIT))


def _lone_edge(kwargs: Mapping[str, Any], modality: Modality) -> bool:
    """Half a size, which the Qwen-VL processors refuse."""
    size = kwargs.get(f"{modality}s_kwargs", {}).get("size")
    return size is not None and set(size) != {"longest_edge", "shortest_edge"}


def slenderness(shape: ImageShape | VideoShape) -> float:
    return max(shape.width_px, shape.height_px) / min(shape.width_px, shape.height_px)


def grid(width: int, height: int, most_px: int) -> int:
    """Tokens of a picture as Qwen-VL processors resize it; slim pictures may exceed the cap."""
    across, down = max(1, round(width / EDGE)), max(1, round(height / EDGE))
    if across * down * UNIT > most_px:
        shrink = math.sqrt(width * height / most_px) * EDGE
        across, down = max(1, int(width / shrink)), max(1, int(height / shrink))
    return across * down


def cost(shape: Shape, kwargs: Mapping[str, Any]) -> Cost:
    sampled: tuple[int, ...]
    match shape:
        case ImageShape(width_px=width, height_px=height):
            tokens, sampled = grid(width, height, cap("image", kwargs)), (width, height)
        case VideoShape(num_frames=frames, width_px=width, height_px=height):
            tokens = math.ceil(frames / 2) * grid(width, height, cap("video", kwargs))
            sampled = (frames, width, height)
        case AudioShape(duration_s=seconds):
            tokens = _audio(math.ceil(seconds * AUDIO_HZ))
            sampled = (math.ceil(seconds * AUDIO_HZ), AUDIO_HZ)
    return Cost(tokens, tokens, tokens * TOKEN_BYTES, 0.0, 0.0, sampled)


def _audio(samples: int) -> int:
    return min(AUDIO_TOKENS, samples // SAMPLES_PER_TOKEN + 1)


def budget(model: ModelInfo, args: Mapping[str, Any], *, build_dummy: bool) -> Budget:
    """vLLM's rule (vllm/multimodal/encoder_budget.py, 0.32)."""
    limits: dict[Modality, tuple[int, Mapping[str, int]]] = {
        m: _limit(args.get("limit_mm_per_prompt", {}).get(m)) for m in model.modalities
    }
    kwargs = args.get("mm_processor_kwargs", {})
    most: dict[Modality, int] = {m: _most(m, kwargs) for m, (count, _) in limits.items() if count}
    batched = args.get("max_num_batched_tokens", model.serve_defaults["max_num_batched_tokens"])
    seqs = args.get("max_num_seqs", model.serve_defaults["max_num_seqs"])
    largest = max(most.values(), default=0)
    if not model.chunks_mm_input and largest > batched:
        raise VllmRefused(f"Chunked MM input disabled but {largest} is larger than {batched}")
    tokens = max(batched, largest) if most else 0
    context = args.get("max_model_len", model.max_model_len)
    per_prompt = {m: max(1, min(limits[m][0], context // most[m])) for m in most}
    per_batch = {m: max(1, min(tokens // most[m], seqs * per_prompt[m])) for m in most}
    profiled = max(most, key=lambda m: (most[m], m), default=None)
    embeds = {m: _dummy(m, kwargs, limits[m][1]) for m in most}
    dummies = {m: Dummy(n, n * TOKEN_BYTES, {}) for m, n in embeds.items()}
    return builders.budget(
        tokens,
        most,
        max_items_per_prompt=per_prompt,
        profiled_modality=profiled,
        profiled_items=per_batch[profiled] if profiled else 0,
        dummies=dummies if build_dummy else {},
        max_model_len=context,
        max_num_batched_tokens=batched,
        max_num_seqs=seqs,
    )


def _limit(value: Any) -> tuple[int, Mapping[str, int]]:
    if isinstance(value, Mapping):
        return value.get("count", ANY), value
    return (ANY if value is None else value), {}


def _most(modality: str, kwargs: Mapping[str, Any]) -> int:
    """Whatever the size hints say."""
    if modality == "audio":
        return AUDIO_TOKENS
    frames = FRAMES // 2 if modality == "video" else 1
    across, down = _largest(cap(modality, kwargs))
    return frames * across * down


def _largest(most_px: int) -> tuple[int, int]:
    """The most tokens within the cap that make a picture of a shape that is not refused."""
    for cells in range(max(1, most_px // UNIT), 0, -1):
        down = next(n for n in range(math.isqrt(cells), 0, -1) if cells % n == 0)
        if cells // down <= 200 * down:
            return cells // down, down
    return 1, 1


def _dummy(modality: str, kwargs: Mapping[str, Any], hint: Mapping[str, int]) -> int:
    """The largest item, each of its axes cut down to the hint."""
    if modality == "audio":
        return _audio(min(hint.get("length", ANY * AUDIO_HZ), AUDIO_TOKENS * SAMPLES_PER_TOKEN))
    pixels = cap(modality, kwargs)
    across, down = _largest(pixels)
    width = min(hint.get("width", across * EDGE), across * EDGE)
    height = min(hint.get("height", down * EDGE), down * EDGE)
    frames = min(hint.get("num_frames", FRAMES), FRAMES) if modality == "video" else 2
    return math.ceil(frames / 2) * grid(width, height, pixels)
