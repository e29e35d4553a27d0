"""Numbers in words, the same in every output: formatting happens here and nowhere else."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from typing import Any

from mmcalib.report.cache import ProcessorCache
from mmcalib.report.calibration import (
    Calibration,
    CheckResult,
    EncoderBudget,
    Evidence,
    Memories,
    Memory,
)
from mmcalib.wording import plain as plain

GIB = 1 << 30
MARKS = {"pass": "ok", "warn": "!!", "fail": "NO", "skip": "--"}
STYLES = {"pass": "green", "warn": "yellow", "fail": "red", "skip": "dim"}


def number(value: float | None) -> str:
    """With thousands separators; a dash where there is nothing."""
    return "—" if value is None else f"{value:,g}" if value < 10 else f"{value:,.0f}"


def gib(value: int | None) -> str:
    return "—" if value is None else f"{value / GIB:.2f} GiB"


def share(value: float | None) -> str:
    """In per cent; what is neither nothing nor all never reads as such."""
    if value is None:
        return "—"
    if 0 < value < 0.001:
        return "<0.1%"
    if 0.999 < value < 1:
        return ">99.9%"
    return f"{value:.1%}" if 0 < value < 1 else f"{value:.0%}"


def ratio(value: float | None) -> str:
    return "—" if value is None else f"{value:,.2f}"


def seconds(value: float | None) -> str:
    """Short ones to the millisecond."""
    return "—" if value is None else f"{value:.3f}" if value < 1 else f"{value:.1f}"


def profile(budget: EncoderBudget) -> str:
    """What vLLM's startup profile runs."""
    if budget.profiled_modality is None:
        return "nothing"
    return f"{budget.profiled_items} × {plain(budget.profiled_modality)}"


def grouped(evidence: Iterable[Evidence]) -> list[tuple[list[str], list[str], Evidence]]:
    """Neighbours with one reason said once: (settings, their values, the first of them)."""
    found = []
    for _, run in groupby(evidence, key=lambda e: (e.reason, e.label, e.exemplar)):
        entries = list(run)
        values = [str(entry.value) for entry in entries]
        found.append(([entry.setting for entry in entries], values, entries[0]))
    return found


def rows(calibration: Calibration) -> list[tuple[str, str, str, str]]:
    """What vLLM would have reserved against what the calibrated configuration reserves:
    (what, default, calibrated, label).
    """
    budget = calibration.budget
    return reserved_rows(budget.default, budget.calibrated, calibration.memory, calibration.cache)


def reserved_rows(
    before: EncoderBudget,
    after: EncoderBudget,
    memory: Memories,
    cache: ProcessorCache | None = None,
) -> list[tuple[str, str, str, str]]:
    """The same of any two configurations."""
    adequacy = "—" if after.adequacy is None else f"{after.adequacy:.2f}"
    found: list[tuple[str, str, str, str]] = [
        (
            "encoder budget, tokens",
            number(before.encoder_budget_tokens),
            number(after.encoder_budget_tokens),
            after.label,
        ),
        *(
            (
                f"largest {modality}, tokens",
                number(before.max_tokens_per_item.get(modality)),
                number(after.max_tokens_per_item.get(modality)),
                after.label,
            )
            for modality in {**before.max_tokens_per_item, **after.max_tokens_per_item}
        ),
        *_resident(before, after),
        ("profiled at startup", profile(before), profile(after), after.label),
        ("profiled ÷ worst step, tokens", "—", adequacy, after.label),
        (
            "max_num_batched_tokens",
            number(before.max_num_batched_tokens),
            number(after.max_num_batched_tokens),
            after.label,
        ),
    ]
    return [*found, *_cache_row(cache), *_memory_rows(memory)]


def _resident(before: EncoderBudget, after: EncoderBudget) -> Iterator[tuple[str, str, str, str]]:
    """How many of the corpus' largest items of each modality the encoder cache holds."""
    if before.resident_items or after.resident_items:
        default, calibrated = (
            ", ".join(f"{number(one.resident_items.get(m))} {m}" for m in one.resident_items) or "—"
            for one in (before, after)
        )
        yield "large items at once", default, calibrated, after.label


def _cache_row(cache: ProcessorCache | None) -> Iterator[tuple[str, str, str, str]]:
    """The size of the processor cache, and the share of the requests' items that hit it."""
    if cache is not None:
        sizes = ((4, cache.default_hit_rate), (cache.mm_processor_cache_gb, cache.hit_rate))
        default, calibrated = (f"{size:g} GiB, {share(rate)}" for size, rate in sizes)
        yield "processor cache, its hits", default, calibrated, cache.label


def _memory_rows(memory: Memories) -> Iterator[tuple[str, str, str, str]]:
    """The figures of memory that are known of either configuration."""
    default, calibrated = memory.default, memory.calibrated
    where = f" on {calibrated.gpu}" if calibrated.gpu else ""
    shown: tuple[tuple[str, str, Callable[[Any], str]], ...] = (
        ("weights", "weights_bytes", gib),
        ("activation peak", "activation_peak_bytes", gib),
        (f"KV cache{where}", "kv_cache_bytes", gib),
        (f"KV cache{where}, tokens", "kv_cache_tokens", number),
        ("requests of full length at once", "max_concurrency", number),
    )
    for what, name, spoken in shown:
        values = (getattr(default, name), getattr(calibrated, name))
        if any(value is not None for value in values):
            label = calibrated.labels.get(name) or calibrated.label or "measured"
            cells = [spoken(value) for value in values]
            if name == "kv_cache_bytes":
                cells = [kv_cache(one) for one in (default, calibrated)]
            yield what, cells[0], cells[1], label


def kv_cache(memory: Memory) -> str:
    """GiB, and whether an engine could start with it."""
    short = memory.kv_cache_bytes is not None and memory.kv_cache_tokens is None
    return gib(memory.kv_cache_bytes) + (", would not start" if short else "")


def check_line(check: CheckResult) -> str:
    return plain(f"{check.name}: {check.detail}")
