"""Cost of an item: processed, counted, budgeted."""

from __future__ import annotations

import contextlib
import inspect
import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mmcalib.child.processor import Processor, count_sounds, load, resampled, sampled_of
from mmcalib.child.service import refusal_of
from mmcalib.domain.knobs import Setting
from mmcalib.domain.memory import Budget, Clip, Dummy
from mmcalib.domain.model import Cost
from mmcalib.domain.shapes import AudioShape, ImageShape, Modality, Shape, VideoShape
from mmcalib.engine.messages import AskBudget, Blank, Counted, CountEmbeds, File, Measure, Measured
from mmcalib.releases import processors
from mmcalib.releases.engine import served_config
from mmcalib.releases.processors import dummy_inputs, item_bytes
from mmcalib.releases.runner import budget_of, multimodal_budget

if TYPE_CHECKING:
    from mmcalib.child.model import OpenedModel


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
    inputs = dummy_inputs(processor, modality)
    placeholders = inputs["mm_placeholders"][modality]
    return Dummy(
        embeds=sum(p.get_num_embeds() for p in placeholders),
        tensor_bytes=sum(item_bytes(item) for item in inputs["mm_kwargs"][modality]),
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
