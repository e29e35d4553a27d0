"""What is shown of a calibration, in the same words by every rendering."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from mmcalib.result.budget import EncoderBudget
from mmcalib.result.calibration import CalibrationDocument
from mmcalib.result.check_result import CheckResult
from mmcalib.result.memory import Memories, Memory
from mmcalib.result.processor_cache import ProcessorCache
from mmcalib.wording import gib, number, plain, share

MARKS = {"pass": "ok", "warn": "!!", "fail": "NO", "skip": "--"}
STYLES = {"pass": "green", "warn": "yellow", "fail": "red", "skip": "dim"}


def profile(budget: EncoderBudget) -> str:
    """What vLLM's startup profile runs."""
    if budget.profiled_modality is None:
        return "nothing"
    return f"{budget.profiled_items} × {plain(budget.profiled_modality)}"


def rows(calibration: CalibrationDocument) -> list[tuple[str, str, str, str]]:
    """What vLLM would have reserved against what the calibrated configuration reserves:
    (what, default, calibrated, label).
    """
    budget = calibration.budget
    reserved = reserved_rows(
        budget.default, budget.calibrated, calibration.memory, calibration.cache
    )
    return [*reserved, *_kept(calibration)]


def _kept(calibration: CalibrationDocument) -> Iterator[tuple[str, str, str, str]]:
    """Per modality the share of their tokens that items keep on average, and the worst."""
    for modality, part in calibration.corpus.modalities.items():
        if part.kept is not None:
            worst = f" (worst {share(part.kept.worst)})" if part.kept.items_smaller else ""
            kept = f"{share(part.kept.mean)}{worst}"
            yield f"{modality} tokens kept", share(1), kept, part.tokens.label


def reserved_rows(
    before: EncoderBudget,
    after: EncoderBudget,
    memory: Memories,
    cache: ProcessorCache | None = None,
) -> list[tuple[str, str, str, str]]:
    """The same of any two configurations."""
    adequacy = "—" if after.adequacy is None else f"{after.adequacy:.2f}"
    found: list[tuple[str, str, str, str]] = [
        budget_row(before, after),
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
    return [*found, *_cache_row(cache), *memory_rows(memory)]


def budget_row(before: EncoderBudget, after: EncoderBudget) -> tuple[str, str, str, str]:
    """What one step may encode."""
    return (
        "encoder budget, tokens",
        number(before.encoder_budget_tokens),
        number(after.encoder_budget_tokens),
        after.label,
    )


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


def memory_rows(memory: Memories) -> Iterator[tuple[str, str, str, str]]:
    """The figures of memory that are known of either configuration."""
    default, calibrated = memory.default, memory.calibrated
    where = on_gpu(calibrated)
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


def on_gpu(memory: Memory) -> str:
    """Where it is: ` on L4`, ` on each of 4 × L4`; nothing where no GPU is known."""
    if not memory.gpu:
        return ""
    gpu = plain(memory.gpu)
    return f" on each of {memory.ranks} × {gpu}" if memory.ranks > 1 else f" on {gpu}"


def kv_cache(memory: Memory) -> str:
    """GiB, and whether an engine could start with it."""
    nbytes = memory.kv_cache_bytes
    # An empty cache lacks what is below none; a request of full length needs more.
    said = f"−{gib(-nbytes)}" if nbytes is not None and nbytes < 0 else gib(nbytes)
    short = nbytes is not None and memory.kv_cache_tokens is None
    return said + (", would not start" if short else "")


def check_line(check: CheckResult) -> str:
    return plain(f"{check.name}: {check.detail}")
