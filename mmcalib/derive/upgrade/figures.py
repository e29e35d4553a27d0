"""All figures of two releases, side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from mmcalib.derive.upgrade.settings import settings
from mmcalib.domain.budget import Budget
from mmcalib.domain.cost import Cost
from mmcalib.domain.model import ModelInfo
from mmcalib.domain.rehearsed import Rehearsed
from mmcalib.domain.release_figure import (
    FigureGroup,
    FigureLabel,
    FigureUnit,
    FigureValue,
    ReleaseFigure,
)
from mmcalib.domain.release_view import ComparedItem, ReleaseView
from mmcalib.domain.shapes import MODALITIES

T = TypeVar("T")
# What is read of a rehearsal: name, unit, label.
_MEMORY: tuple[tuple[str, str, FigureUnit, FigureLabel], ...] = (
    ("requested", "requested_bytes", "bytes", "rehearsed"),
    ("weights", "weights_bytes", "bytes", "rehearsed"),
    ("buffers", "buffers_bytes", "bytes", "rehearsed"),
    ("activation peak", "activation_peak_bytes", "bytes", "rehearsed"),
)
_LEFT: tuple[tuple[str, str, FigureUnit, FigureLabel], ...] = (
    ("encoder cache, full", "encoder_cache_bytes", "bytes", "computed"),
    ("outside torch", "non_torch_bytes", "bytes", "assumed"),
    ("CUDA graphs", "cudagraph_bytes", "bytes", "assumed"),
    ("KV cache", "kv_cache_bytes", "bytes", "computed"),
    ("KV cache per token", "kv_bytes_per_token", "bytes", "rehearsed"),
    ("KV cache, tokens", "kv_cache_tokens", "tokens", "computed"),
    ("requests of full length at once", "max_concurrency", "requests", "computed"),
)
_ENGINE = (
    ("model runner", "runner"),
    ("sampler", "sampler"),
    ("attention", "attention"),
    ("encoder attention", "encoder_attention"),
    ("dtype", "dtype"),
)
_PHASES = ("encoder", "language model", "sampler")


def release_figures(before: ReleaseView, after: ReleaseView) -> tuple[ReleaseFigure, ...]:
    """Every figure that one of both has, in the order in which they are shown."""
    return (
        *_items(before, after),
        *_budget(before.rehearsed, after.rehearsed),
        *_memory(before.rehearsed, after.rehearsed),
        *_engine(before.rehearsed, after.rehearsed),
        *_server(before.opened, after.opened),
        *_knobs(before.opened, after.opened),
        *settings(before, after),
    )


def _items(before: ReleaseView, after: ReleaseView) -> Iterator[ReleaseFigure]:
    kinds: tuple[tuple[FigureGroup, FigureUnit, Callable[[Cost], int]], ...] = (
        ("item_tokens", "tokens", lambda cost: cost.tokens),
        ("item_cache_bytes", "bytes", lambda cost: cost.tensor_bytes),
    )
    first = {item.shape: item for item in before.items}
    second = {item.shape: item for item in after.items}
    for group, unit, read in kinds:
        for shape in dict.fromkeys((*first, *second)):
            name = f"{shape.modality} {shape}"
            values = [_of_item(found.get(shape), read) for found in (first, second)]
            yield ReleaseFigure(group, name, unit, values[0], values[1], "measured")


def _of_item(item: ComparedItem | None, read: Callable[[Cost], int]) -> FigureValue:
    if item is None:
        return None
    return f"refused: {item.refusal}" if item.cost is None else read(item.cost)


def _budget(before: Rehearsed | None, after: Rehearsed | None) -> Iterator[ReleaseFigure]:
    both = tuple(None if one is None else one.budget for one in (before, after))

    def row(name: str, unit: FigureUnit, read: Callable[[Budget], FigureValue]) -> ReleaseFigure:
        first, second = (_read(one, read) for one in both)
        return ReleaseFigure("budget", name, unit, first, second, "computed")

    if both == (None, None):
        return
    yield row("encoder compute", "tokens", lambda b: b.encoder_compute_budget)
    yield row("encoder cache", "tokens", lambda b: b.encoder_cache_size)
    yield row("max_num_batched_tokens", "tokens", lambda b: b.max_num_batched_tokens)
    yield row("max_num_seqs", "requests", lambda b: b.max_num_seqs)
    yield row("max_model_len", "tokens", lambda b: b.max_model_len)
    for one in MODALITIES:
        if not any(b is not None and one in b.max_tokens_per_item for b in both):
            continue
        yield row(f"largest {one}", "tokens", lambda b, m=one: b.max_tokens_per_item.get(m))  # type: ignore[misc]
        yield row(f"{one}s in one batch", "items", lambda b, m=one: b.max_items_per_batch.get(m))  # type: ignore[misc]
    yield row("profiled modality", "", lambda b: b.profiled_modality)
    yield row("profiled items", "items", lambda b: b.profiled_items)


def _memory(before: Rehearsed | None, after: Rehearsed | None) -> Iterator[ReleaseFigure]:
    if before is None and after is None:
        return
    yield from _fields(before, after, _MEMORY)
    for phase in _PHASES:
        first, second = (_read(one, lambda r, p=phase: _peak(r, p)) for one in (before, after))  # type: ignore[misc]
        yield ReleaseFigure("memory", f"peak of {phase}", "bytes", first, second, "rehearsed")
    yield from _fields(before, after, _LEFT)


def _peak(rehearsed: Rehearsed, name: str) -> int | None:
    return next((phase.peak_bytes for phase in rehearsed.phases if phase.name == name), None)


def _fields(
    before: Rehearsed | None,
    after: Rehearsed | None,
    fields: Iterable[tuple[str, str, FigureUnit, FigureLabel]],
) -> Iterator[ReleaseFigure]:
    for name, field, unit, label in fields:
        first, second = getattr(before, field, None), getattr(after, field, None)
        yield ReleaseFigure("memory", name, unit, first, second, label)


def _engine(before: Rehearsed | None, after: Rehearsed | None) -> Iterator[ReleaseFigure]:
    if before is None or after is None:
        return
    for name, field in _ENGINE:
        first, second = getattr(before, field), getattr(after, field)
        yield ReleaseFigure("engine", name, "", first, second, "rehearsed")


def _server(before: ModelInfo | None, after: ModelInfo | None) -> Iterator[ReleaseFigure]:
    """Limits of what a request may bring, by the variable that sets each, and video codecs."""
    if before is None or after is None:
        return
    first, second = before.server.limits, after.server.limits
    for name in dict.fromkeys((*first, *second)):
        yield ReleaseFigure("server", name, "", first.get(name), second.get(name), "measured")
    for codec in dict.fromkeys((*before.server.decodes, *after.server.decodes)):
        opens = [_opens(one.server.decodes.get(codec)) for one in (before, after)]
        yield ReleaseFigure("server", f"video as {codec}", "", opens[0], opens[1], "measured")
    if before.server.decodes and after.server.decodes:
        alone = [_opens(one.server.lone_frames) for one in (before, after)]
        yield ReleaseFigure("server", "video of one frame", "", alone[0], alone[1], "measured")


def _opens(decoded: bool | None) -> str | None:
    return None if decoded is None else "decoded" if decoded else "not decoded"


def _knobs(before: ModelInfo | None, after: ModelInfo | None) -> Iterator[ReleaseFigure]:
    """Options of processor and loader that are heeded, with their defaults."""
    if before is None or after is None:
        return
    first, second = (
        {f"{k.argument}.{k.name}": k.value for k in one.knobs} for one in (before, after)
    )
    for name in dict.fromkeys((*first, *second)):
        yield ReleaseFigure("knob", name, "", first.get(name), second.get(name), "measured")


def _read(one: T | None, read: Callable[[T], FigureValue]) -> FigureValue:
    return None if one is None else read(one)
