"""vLLM's processor under a setting: what it makes of an item, counts of it, and budgets for it."""

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

from mmcalib.child.service import refusal_of
from mmcalib.child.tensors import timed
from mmcalib.corpus.urls import served_url
from mmcalib.derive.admission import Hearing, unheard
from mmcalib.domain.knobs import Setting
from mmcalib.domain.memory import Budget, Clip, Dummy
from mmcalib.domain.model import Cost, Processed
from mmcalib.domain.shapes import AudioShape, ImageShape, Modality, Shape, VideoShape
from mmcalib.engine.messages import (
    AskBudget,
    Blank,
    CompareDevices,
    Counted,
    CountEmbeds,
    DevicesCompared,
    File,
    Measure,
    Measured,
)
from mmcalib.processes import free_bytes
from mmcalib.releases import processors
from mmcalib.releases.engine import served_config
from mmcalib.releases.runner import budget_of, multimodal_budget
from mmcalib.text import GIB

if TYPE_CHECKING:
    from mmcalib.child.model import OpenedModel

# Items are loaded through vLLM's own connector, which asks for a root; which files may be read was
# decided by the parent before it named them.
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
_PROCESSING = (
    "processing it takes about {needed:.0f} GiB of host memory, {free:.0f} GiB are free here"
)


def require_host_memory(needed_bytes: int, words: str = _PROCESSING) -> None:
    """Raises MemoryError with both figures where so much is not free, in a container of its own."""
    free = free_bytes()
    if free is not None and needed_bytes > _SHARE * free:
        raise MemoryError(words.format(needed=needed_bytes / GIB, free=free / GIB))


def load(subject: Blank | File, under: Processor) -> tuple[Any, tuple[int, ...]]:
    """Load one item through vLLM's connector; returns the media and what was sampled of it.

    Raises whatever the server's loader raises: the server would refuse such a request too.
    """
    media = _file(subject, under) if isinstance(subject, File) else _blank(subject, under)
    sampled = sampled_of(getattr(media, "media", media))
    if subject.modality == "audio":
        hearing = Hearing(processors.audio_rate_hz(under.processor))
        if refusal := unheard(AudioShape(*sampled), hearing):
            raise ValueError(f"{refusal.reason}: {refusal.remedy}")
    return media, sampled


def _file(subject: File, under: Processor) -> Any:
    url = served_url(os.path.realpath(subject.path))
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


def _blank(subject: Blank, under: Processor) -> Any:
    match subject.shape:
        case ImageShape(width_px=width, height_px=height):
            return Image.new("RGB", (width, height))
        case AudioShape(num_samples=samples, sample_rate_hz=rate):
            return np.zeros(samples, dtype=np.float32), rate
        case VideoShape() as shape:
            # Frames of zeros, as many as the model's own loader would sample of such a video.
            options = dict(under.setting.media_io_kwargs.get("video", {}))
            with processors.blank_videos(shape, require_host_memory):
                return processors.video_loader(under.config, options).load_bytes(b"")


def sampled_of(media: Any) -> tuple[int, ...]:
    if isinstance(media, Image.Image):
        return media.size
    first, second = media
    if isinstance(second, dict):
        frames, height, width = first.shape[:3]
        return int(frames), int(width), int(height)
    return int(first.shape[-1]), int(second)


# Embeds, and frames of features.
_Count = tuple[int | None, int | None]
# Frames of features of a sound of so many samples.
_Frames = Callable[[int], int]


def count_sounds(shapes: Sequence[AudioShape], under: Processor) -> list[_Count]:
    """Of each in order, as far as vLLM's code tells. A sound is resampled to the model's rate, and
    a frame of features begins at every hop.
    """
    try:
        return _count_by_code(shapes, under) if shapes else []
    except Exception:  # noqa: BLE001 - then they are measured
        return [(None, None)] * len(shapes)


def _count_by_code(shapes: Sequence[AudioShape], under: Processor) -> list[_Count]:
    rate_hz = processors.audio_rate_hz(under.processor)
    if rate_hz is None:
        return [(None, None)] * len(shapes)
    samples = [-(-shape.num_samples * rate_hz // shape.sample_rate_hz) for shape in shapes]
    framing = processors.framing(under.processor)
    if framing is None:
        return [(number, None) for number in processors.sound_embeds(under.processor, samples)]
    frames = list(map(_frames_rule(max(samples), rate_hz, *framing, under), samples))
    embeds = processors.sound_embeds(under.processor, samples, frames)
    return list(zip(embeds, frames, strict=True))


def _frames_rule(most: int, rate_hz: int, hop: int, padded: int, under: Processor) -> _Frames:
    """As a sound that is a bit longer than `most` shows: whether the processor cuts it off, and
    whether it drops a last frame that is not whole of what is longer than it pads to.
    """

    def begun(samples: int) -> int:
        return -(-samples // hop)

    longest = begun(most) * hop + 1
    media = np.zeros(longest, dtype=np.float32), rate_hz
    output = processors.process_item(under.processor, "audio", media)
    shown = processors.feature_frames(output["mm_kwargs"]["audio"][0])
    if shown is None or shown == begun(longest):
        return begun
    if shown == longest // hop:
        return lambda samples: begun(samples) if samples <= padded else samples // hop
    return lambda samples: min(begun(samples), shown)


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
        return processors.resampled_samples(under.processor, load(subject, under)[0]), len(heard)
    except Exception:  # noqa: BLE001 - a second opinion is welcome, and not needed
        return ()


def measure(model: OpenedModel, request: Measure) -> Iterator[Measured]:
    """Cost every subject in order; an item that vLLM refuses is answered with its reason."""
    under = model.under(request.setting)
    for index, subject in enumerate(request.subjects):
        try:
            found = cost(subject, under)
            yield Measured(index, found, resampled=resampled(subject, under))
        except MemoryError as error:
            yield Measured(index, None, refusal=refusal_of(error), refused_by="host_memory")
        except Exception as error:  # noqa: BLE001 - the refusal is the measurement
            yield Measured(index, None, refusal=refusal_of(error))


def cost(subject: Blank | File, under: Processor) -> Cost:
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


def count(model: OpenedModel, request: CountEmbeds) -> Counted:
    """Embeds and parts of every blank in order; None where the model's code has no count of it."""
    under = model.under(request.setting)
    shapes = [blank.shape for blank in request.subjects]
    sampled = tuple(_sampled(blank, under) for blank in request.subjects)
    sounds = iter(count_sounds([shape for shape in shapes if isinstance(shape, AudioShape)], under))
    counters = {
        one: counter(one, under) for one in {shape.modality for shape in shapes} - {"audio"}
    }
    tiles = processors.tiles_counter(under.processor)

    def count_one(shape: Shape, size: tuple[int, ...]) -> tuple[int | None, int | None]:
        if isinstance(shape, AudioShape):
            return next(sounds)
        cut = tiles(*size) if tiles and isinstance(shape, ImageShape) else None
        return _count_embeds(counters[shape.modality], size), cut

    found = [count_one(shape, size) for shape, size in zip(shapes, sampled, strict=True)]
    return Counted(tuple(n for n, _ in found), sampled, tuple(parts for _, parts in found))


def _sampled(blank: Blank, under: Processor) -> tuple[int, ...]:
    """What the loader hands over; () where it refuses."""
    if isinstance(blank.shape, ImageShape):
        return blank.shape.width_px, blank.shape.height_px
    try:
        return load(blank, under)[1]
    except Exception:  # noqa: BLE001 - a refusal is for the measurement to tell
        return ()


def _count_embeds(counter: Callable[..., int] | None, sampled: tuple[int, ...]) -> int | None:
    if counter is None or not sampled:
        return None
    *frames, width, height = sampled
    extra = {"num_frames": frames[0]} if frames else {}
    try:
        return int(counter(image_width=width, image_height=height, **extra))
    except Exception:  # noqa: BLE001 - then the item is measured
        return None


def counter(modality: Modality, under: Processor) -> Callable[..., int] | None:
    """vLLM's counting method with everything but the size filled in, by the names of its
    parameters: models differ in which they want.
    """
    info = under.info
    method: Callable[..., Any] | None = getattr(info, f"get_num_{modality}_tokens", None)
    if method is None:
        return None
    part = getattr(info, f"get_{modality}_processor", None)
    known = {
        "processor": info.get_hf_processor,
        "image_processor": part or getattr(info, "get_image_processor", None),
        "mm_kwargs": lambda: processors.own_size(under.processor, modality),
    }
    wanted = inspect.signature(method).parameters
    try:
        filled = {name: make() for name, make in known.items() if make and name in wanted}
    except Exception:  # noqa: BLE001 - then the items are measured
        return None
    return lambda **size: method(**size, **filled)


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

_known: dict[tuple[str, str], Clip | None] = {}


def largest_clip(config: Any, processor: Any) -> Clip | None:
    """The clip of most embeds under this model config; None where the loader keeps any number of
    frames, or the model has no count.
    """
    mm = config.multimodal_config
    setting = Setting(dict(mm.mm_processor_kwargs or {}), dict(mm.media_io_kwargs or {}))
    key = (str(config.model), setting.key)
    if key not in _known:
        under = Processor(config, processor, setting)
        count = counter("video", under)
        most = None if count is None else _most_frames(under)
        clips = () if count is None or most is None else _clips(count, most)
        _known[key] = max(clips, key=lambda clip: clip.embeds, default=None)
    return _known[key]


def _most_frames(under: Processor) -> int | None:
    kept = set()
    for frames, fps in _LONG:
        shape = VideoShape(frames, fps, frames / fps, _SIDE_PX, _SIDE_PX)
        try:
            kept.add(load(Blank(shape), under)[1][0])
        except Exception:  # noqa: BLE001 - a loader that refuses it says nothing of its most
            return None
    return kept.pop() if len(kept) == 1 else None


def _clips(count: Callable[..., int], most_frames: int) -> Iterator[Clip]:
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


def budget(request: AskBudget) -> Budget:
    """Build the engine config as `vllm serve` would and read its MultiModalBudget."""
    config = served_config(request.engine_args)
    mm = multimodal_budget(config)
    found = budget_of(config, mm, largest_clip)
    if not request.build_dummy:
        return found
    only = found.profiled_modality if request.only_profiled else None
    names = [only] if only else found.max_tokens_per_item
    return replace(found, dummies={name: dummy(mm.processor, name) for name in names})


def dummy(processor: Any, modality: Modality) -> Dummy:
    """The item that vLLM's dummy builder makes, clamped by the size hints as it clamps them."""
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
        samples = first[0] if isinstance(first, tuple) else first
        return {"length": int(samples.shape[-1])}
    if modality == "image":
        width, height = first.size
        return {"width": int(width), "height": int(height)}
    frames, width, height = sampled_of(first if isinstance(first, tuple) else (first, {}))
    return {"num_frames": frames, "width": width, "height": height}


def compare_devices(model: OpenedModel, request: CompareDevices) -> DevicesCompared:
    """The subject through the processor on the CPU and on another device: what each makes, seconds
    and memory. What either refuses is answered as a reason.
    """
    modality, device = request.subject.modality, torch.device(request.device)
    made: list[Processed] = []
    try:
        media, _ = load(request.subject, model.under(request.setting))
        for where in (torch.device("cpu"), device):
            under = model.on(request.setting, str(where)) if made else model.under(request.setting)
            if request.warm:
                processors.process_item(under.processor, modality, media)
            made.append(_process(under, modality, media, where))
    except Exception as error:  # noqa: BLE001 - the refusal is the measurement
        reason = refusal_of(error)
    else:
        return DevicesCompared(made[0], made[1])
    # Out here nothing holds the tensors of the failed run any more.
    if device.type == "cuda":
        torch.cuda.empty_cache()
    return DevicesCompared(made[0] if made else None, None, reason)


def _process(under: Processor, modality: Modality, media: Any, device: torch.device) -> Processed:
    def run() -> Any:
        return processors.process_item(under.processor, modality, media)

    output, seconds, peak = timed(run, device)
    placeholders = output["mm_placeholders"][modality]
    return Processed(
        tokens=sum(p.length for p in placeholders),
        embeds=sum(p.get_num_embeds() for p in placeholders),
        tensors=tuple(
            said
            for item in output["mm_kwargs"][modality]
            for name, element in sorted(item.items())
            for said in _tensors(name, getattr(element, "data", element))
        ),
        seconds=seconds,
        peak_bytes=peak,
    )


def _tensors(name: str, data: Any) -> Iterator[str]:
    """Name, type and shape of every tensor; of another value its type."""
    if isinstance(data, list | tuple):
        for number, one in enumerate(data):
            yield from _tensors(f"{name}.{number}", one)
    elif isinstance(data, torch.Tensor):
        yield f"{name} {str(data.dtype).removeprefix('torch.')} {'×'.join(map(str, data.shape))}"
    else:
        yield f"{name} {type(data).__name__}"
