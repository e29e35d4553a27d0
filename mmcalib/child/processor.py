"""Measure and count items with vLLM's processor, and compute encoder budgets."""

from __future__ import annotations

import contextlib
import inspect
import itertools
import os
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL import Image

from mmcalib.child.failures import refusal_reason
from mmcalib.child.tensors import time_call
from mmcalib.corpus.urls import local_file_url
from mmcalib.domain.knobs import Setting
from mmcalib.domain.memory import Budget, Clip, Dummy
from mmcalib.domain.model import Cost, ProcessedItem
from mmcalib.domain.shapes import AudioShape, ImageShape, Modality, Shape, VideoShape
from mmcalib.engine import messages as m
from mmcalib.gate.admission import AudioLimits, find_audio_refusal
from mmcalib.processes import free_bytes
from mmcalib.releases import processors
from mmcalib.releases.engine import serve_config
from mmcalib.releases.runner import multimodal_budget, to_budget
from mmcalib.text import GIB

if TYPE_CHECKING:
    from mmcalib.child.model import OpenedModel

# vLLM's connector requires a root folder. The parent has already decided which files to read.
MEDIA_ROOT = "/"


@dataclass(frozen=True, slots=True)
class Processor:
    """vLLM's processor under one setting, with the model config that made it."""

    config: Any
    processor: Any
    setting: Setting

    @property
    def info(self) -> Any:
        return self.processor.info


_SHARE = 0.8
_PROCESSING = "processing needs about {needed:.0f} GiB of host memory; {free:.0f} GiB are free"


def require_host_memory(needed_bytes: int, words: str = _PROCESSING) -> None:
    """Raise MemoryError with both figures if it exceeds 80% of the free (container) memory."""
    free = free_bytes()
    if free is not None and needed_bytes > _SHARE * free:
        raise MemoryError(words.format(needed=needed_bytes / GIB, free=free / GIB))


def load(subject: m.Blank | m.File, under: Processor) -> tuple[Any, tuple[int, ...]]:
    """Load one item by vLLM's connector: (media, sampled size). Raises the server's exceptions."""
    media = _file(subject, under) if isinstance(subject, m.File) else _blank(subject, under)
    sampled = sampled_size(getattr(media, "media", media))
    if subject.modality == "audio":
        hearing = AudioLimits(processors.audio_rate_hz(under.processor))
        if refusal := find_audio_refusal(AudioShape(*sampled), hearing):
            raise ValueError(f"{refusal.reason}: {refusal.remedy}")
    return media, sampled


def _file(subject: m.File, under: Processor) -> Any:
    url = local_file_url(os.path.realpath(subject.path))
    kwargs = {name: dict(values) for name, values in under.setting.media_io_kwargs.items()}
    connector = processors.connector(kwargs, MEDIA_ROOT)
    match subject.modality:
        case "image":
            return connector.fetch_image(url)
        case "audio":
            return connector.fetch_audio(url)
        case "video":
            name = processors.video_processor_name(under.config)
            return connector.fetch_video(url, video_processor=name)


def _blank(subject: m.Blank, under: Processor) -> Any:
    match subject.shape:
        case ImageShape(width_px=width, height_px=height):
            return Image.new("RGB", (width, height))
        case AudioShape(num_samples=samples, sample_rate_hz=rate):
            return np.zeros(samples, dtype=np.float32), rate
        case VideoShape() as shape:
            # Blank frames, as many as the model's own loader samples from such a video.
            options = dict(under.setting.media_io_kwargs.get("video", {}))
            with processors.blank_videos(shape, require_host_memory):
                return processors.video_loader(under.config, options).load_bytes(b"")


def sampled_size(media: Any) -> tuple[int, ...]:
    if isinstance(media, Image.Image):
        return media.size
    first, second = media
    if isinstance(second, dict):
        frames, height, width = first.shape[:3]
        return int(frames), int(width), int(height)
    return int(first.shape[-1]), int(second)


# Embeds, and frames of features.
_Count = tuple[int | None, int | None]
# Frames of features by the sound's samples.
_Frames = Callable[[int], int]


def count_sounds(shapes: Sequence[AudioShape], under: Processor) -> list[_Count]:
    """Count these sounds in order with vLLM's code; None if its code cannot count."""
    try:
        rate_hz = processors.audio_rate_hz(under.processor) if shapes else None
        if rate_hz is None:
            return [(None, None)] * len(shapes)
        samples = [-(-shape.num_samples * rate_hz // shape.sample_rate_hz) for shape in shapes]
        framing = processors.audio_framing(under.processor)
        if framing is None:
            return [(number, None) for number in processors.sound_embeds(under.processor, samples)]
        frames = list(map(_frames_rule(max(samples), rate_hz, *framing, under), samples))
        embeds = processors.sound_embeds(under.processor, samples, frames)
        return list(zip(embeds, frames, strict=True))
    except Exception:  # noqa: BLE001 - mmcalib then measures them
        return [(None, None)] * len(shapes)


def _frames_rule(most: int, rate_hz: int, hop: int, padded: int, under: Processor) -> _Frames:
    """Process a sound above `most` to see if sounds are truncated, or lose a partial last frame."""

    def round_up(samples: int) -> int:
        return -(-samples // hop)

    longest = round_up(most) * hop + 1
    media = np.zeros(longest, dtype=np.float32), rate_hz
    output = processors.process_item(under.processor, "audio", media)
    frames = processors.feature_frames(output["mm_kwargs"]["audio"][0])
    if frames is None or frames == round_up(longest):
        return round_up
    if frames == longest // hop:
        return lambda samples: round_up(samples) if samples <= padded else samples // hop
    return lambda samples: min(round_up(samples), frames)


def compare_resampling(subject: m.Blank | m.File, under: Processor) -> tuple[int, ...]:
    """Return samples at the model's rate, by vLLM and by librosa; empty if librosa fails."""
    rate_hz = processors.audio_rate_hz(under.processor)
    if not isinstance(subject, m.File) or subject.modality != "audio" or rate_hz is None:
        return ()
    try:
        import librosa

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            sound, _ = librosa.load(subject.path, sr=rate_hz)
        ours = processors.count_resampled_samples(under.processor, load(subject, under)[0])
        return ours, len(sound)
    except Exception:  # noqa: BLE001 - the comparison is optional
        return ()


def measure_items(model: OpenedModel, request: m.Measure) -> Iterator[m.Measured]:
    """Measure every subject in order; yield vLLM's reason for an item that it refuses."""
    under = model.with_setting(request.setting)
    for subject in request.subjects:
        try:
            cost, resampled = measure_cost(subject, under), compare_resampling(subject, under)
            yield m.Measured(cost, resampled=resampled)
        except MemoryError as error:
            yield m.Measured(None, refusal=refusal_reason(error), refused_by="host_memory")
        except Exception as error:  # noqa: BLE001 - the refusal is the measurement
            yield m.Measured(None, refusal=refusal_reason(error))


def measure_cost(subject: m.Blank | m.File, under: Processor) -> Cost:
    started, spent = time.perf_counter(), time.process_time()
    media, sampled = load(subject, under)
    loaded = time.perf_counter()
    modality = subject.modality
    output = processors.process_item(under.processor, modality, media)
    done, cpu_s = time.perf_counter(), time.process_time() - spent
    placeholders = output["mm_placeholders"][modality]
    return Cost(
        tokens=sum(p.length for p in placeholders),
        embeds=sum(p.get_num_embeds() for p in placeholders),
        tensor_bytes=sum(processors.item_bytes(item) for item in output["mm_kwargs"][modality]),
        load_s=loaded - started,
        process_s=done - loaded,
        sampled=sampled,
        cpu_s=cpu_s,
    )


def count_blanks(model: OpenedModel, request: m.CountEmbeds) -> m.EmbedCounts:
    """Count embeds and parts of every blank in order; None if the model's code cannot count it."""
    under = model.with_setting(request.setting)
    shapes = [blank.shape for blank in request.subjects]
    sampled = tuple(_sample_size(blank, under) for blank in request.subjects)
    sounds = iter(count_sounds([shape for shape in shapes if isinstance(shape, AudioShape)], under))
    modalities = {shape.modality for shape in shapes} - {"audio"}
    counters = {modality: counter(modality, under) for modality in modalities}
    tiles = processors.tiles_counter(under.processor)

    def count_one(shape: Shape, size: tuple[int, ...]) -> tuple[int | None, int | None]:
        if isinstance(shape, AudioShape):
            return next(sounds)
        cut = tiles(*size) if tiles and isinstance(shape, ImageShape) else None
        return _count_embeds(counters[shape.modality], size), cut

    counts = [count_one(shape, size) for shape, size in zip(shapes, sampled, strict=True)]
    return m.EmbedCounts(tuple(n for n, _ in counts), sampled, tuple(parts for _, parts in counts))


def _sample_size(blank: m.Blank, under: Processor) -> tuple[int, ...]:
    if isinstance(blank.shape, ImageShape):
        return blank.shape.width_px, blank.shape.height_px
    try:
        return load(blank, under)[1]
    except Exception:  # noqa: BLE001 - the measurement reports a refusal
        return ()


def _count_embeds(counter: Callable[..., int] | None, sampled: tuple[int, ...]) -> int | None:
    if counter is None or not sampled:
        return None
    *frames, width, height = sampled
    extra = {"num_frames": frames[0]} if frames else {}
    try:
        return int(counter(image_width=width, image_height=height, **extra))
    except Exception:  # noqa: BLE001 - mmcalib then measures the item
        return None


def counter(modality: Modality, under: Processor) -> Callable[..., int] | None:
    """Return vLLM's counting method with all parameters except the size; models differ in them."""
    info = under.info
    method: Callable[..., Any] | None = getattr(info, f"get_num_{modality}_tokens", None)
    if method is None:
        return None
    part = getattr(info, f"get_{modality}_processor", None)
    makers = {
        "processor": info.get_hf_processor,
        "image_processor": part or getattr(info, "get_image_processor", None),
        "mm_kwargs": lambda: processors.picture_size_kwargs(under.processor, modality),
    }
    parameters = inspect.signature(method).parameters
    try:
        arguments = {name: make() for name, make in makers.items() if make and name in parameters}
    except Exception:  # noqa: BLE001 - mmcalib then measures the items
        return None
    return lambda **size: method(**size, **arguments)


# Long clips. A loader that keeps equally many frames of each has a maximum.
_LONG = ((12_000, 30.0), (24_000, 30.0), (12_000, 1.0))
_SIDE_PX = 8
# Sides from one patch to more than any camera has.
_SIDES_PX = tuple(16 << step for step in range(10))
# Wider than any camera or screen (32:9). vLLM accepts frames of up to 200:1, but many of them round
# to several times the cap of the whole clip (`smart_resize` of Qwen3-VL: each side has at least one
# cell), so a worst step with such clips would be useless.
_MAX_ASPECT = 4
_FEWER = (1, 4, 16, 64)

_largest_clips: dict[tuple[str, str], Clip | None] = {}


def largest_clip(config: Any, processor: Any) -> Clip | None:
    """Return the clip with the most embeds; None if uncountable or if frames are unlimited."""
    mm = config.multimodal_config
    setting = Setting(dict(mm.mm_processor_kwargs or {}), dict(mm.media_io_kwargs or {}))
    key = (str(config.model), setting.key)
    if key not in _largest_clips:
        under = Processor(config, processor, setting)
        count = counter("video", under)
        most = None if count is None else _most_frames(under)
        clips = () if count is None or most is None else _clips(count, most)
        _largest_clips[key] = max(clips, key=lambda clip: clip.embeds, default=None)
    return _largest_clips[key]


def _most_frames(under: Processor) -> int | None:
    counts = set()
    for frames, fps in _LONG:
        shape = VideoShape(frames, fps, frames / fps, _SIDE_PX, _SIDE_PX)
        try:
            counts.add(load(m.Blank(shape), under)[1][0])
        except Exception:  # noqa: BLE001 - the maximum of a loader that refuses it is unknown
            return None
    return counts.pop() if len(counts) == 1 else None


def _clips(count: Callable[..., int], most_frames: int) -> Iterator[Clip]:
    """Yield clips of every size with the most frames and with fewer, where rounding loses less."""
    pairs = itertools.combinations_with_replacement(_SIDES_PX, 2)
    sizes = [(low, high) for low, high in pairs if high <= low * _MAX_ASPECT]
    for frames in sorted({max(1, most_frames // fewer) for fewer in _FEWER}):
        for height, width in sizes:
            # Skip a size that the processor refuses.
            with contextlib.suppress(Exception):
                embeds = count(image_width=width, image_height=height, num_frames=frames)
                yield Clip(int(embeds), frames, width, height)


def compute_budget(request: m.ComputeBudget) -> Budget:
    config = serve_config(request.engine_args)
    mm = multimodal_budget(config)
    result = to_budget(config, mm, largest_clip)
    if not request.build_dummy:
        return result
    only = result.profiled_modality if request.only_profiled else None
    names = [only] if only else result.max_tokens_per_item
    return replace(result, dummies={name: make_dummy(mm.processor, name) for name in names})


def make_dummy(processor: Any, modality: Modality) -> Dummy:
    """Return the item of vLLM's dummy builder, which applies the size hints."""
    inputs = processors.dummy_inputs(processor, modality)
    placeholders = inputs["mm_placeholders"][modality]
    return Dummy(
        embeds=sum(p.get_num_embeds() for p in placeholders),
        tensor_bytes=sum(processors.item_bytes(item) for item in inputs["mm_kwargs"][modality]),
        size=_dummy_size(processor, modality),
    )


def _dummy_size(processor: Any, modality: Modality) -> dict[str, int]:
    info = processor.info
    options = info.ctx.get_mm_config().limit_per_prompt
    data = processor.dummy_inputs.get_dummy_mm_data(
        info.ctx.model_config.max_model_len, {modality: 1}, options
    )
    media = data[modality]
    first = media[0] if isinstance(media, list) else media
    if modality == "audio":
        return {"length": int((first[0] if isinstance(first, tuple) else first).shape[-1])}
    if modality == "image":
        width, height = first.size
        return {"width": int(width), "height": int(height)}
    if isinstance(first, list):  # MiniCPM-V's clip is a list of pictures.
        width, height = first[0].size
        return {"num_frames": len(first), "width": int(width), "height": int(height)}
    frames, width, height = sampled_size(first if isinstance(first, tuple) else (first, {}))
    return {"num_frames": frames, "width": width, "height": height}


def compare_devices(model: OpenedModel, request: m.CompareDevices) -> m.DeviceComparison:
    """Process the subject on the CPU and on another device; report a failure of either."""
    modality, device = request.subject.modality, torch.device(request.device)
    results: list[ProcessedItem] = []
    try:
        media, _ = load(request.subject, model.with_setting(request.setting))
        for where in (torch.device("cpu"), device):
            setting = request.setting
            under = model.on_device(setting, str(where)) if results else model.with_setting(setting)
            if request.warm:
                processors.process_item(under.processor, modality, media)
            results.append(_process(under, modality, media, where))
    except Exception as error:  # noqa: BLE001 - the refusal is the measurement
        reason = refusal_reason(error)
    else:
        return m.DeviceComparison(results[0], results[1])
    # The exception no longer keeps the tensors of the failed run.
    if device.type == "cuda":
        torch.cuda.empty_cache()
    return m.DeviceComparison(results[0] if results else None, None, reason)


def _process(
    under: Processor, modality: Modality, media: Any, device: torch.device
) -> ProcessedItem:
    def run() -> Any:
        return processors.process_item(under.processor, modality, media)

    output, seconds, peak = time_call(run, device)
    placeholders = output["mm_placeholders"][modality]
    return ProcessedItem(
        tokens=sum(p.length for p in placeholders),
        embeds=sum(p.get_num_embeds() for p in placeholders),
        tensors=tuple(
            text
            for item in output["mm_kwargs"][modality]
            for name, element in sorted(item.items())
            for text in _describe_tensors(name, getattr(element, "data", element))
        ),
        seconds=seconds,
        peak_bytes=peak,
    )


def _describe_tensors(name: str, data: Any) -> Iterator[str]:
    if isinstance(data, list | tuple):
        for number, part in enumerate(data):
            yield from _describe_tensors(f"{name}.{number}", part)
    elif isinstance(data, torch.Tensor):
        yield f"{name} {str(data.dtype).removeprefix('torch.')} {'×'.join(map(str, data.shape))}"
    else:
        yield f"{name} {type(data).__name__}"
