"""Rows and sentences shared by all renderings."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from mmcalib import text as wording
from mmcalib.derive.limits import ADEQUATE
from mmcalib.domain.memory import LiveTensor
from mmcalib.results.calibration import CalibrationDocument, YourConfiguration
from mmcalib.results.memory import EncoderBudget, Memory
from mmcalib.results.part import CheckResult
from mmcalib.text import gib, number, plain, several, share

MARKS = {"pass": "ok", "warn": "!!", "fail": "NO", "skip": "--"}
STYLES = {"pass": "green", "warn": "yellow", "fail": "red", "skip": "dim"}


def profile(budget: EncoderBudget) -> str:
    """What vLLM's startup profile runs."""
    if budget.profiled_modality is None:
        return "nothing"
    return f"{budget.profiled_items} × {plain(budget.profiled_modality)}"


@dataclass(frozen=True, slots=True)
class Column:
    """One of the configurations that are compared, and what vLLM reserves under it."""

    name: str
    budget: EncoderBudget
    memory: Memory
    cache: str = ""


# What it is, its value in each configuration, and how that of the last is known.
Row = tuple[str, ...]


def columns(calibration: CalibrationDocument) -> list[Column]:
    """The default, the user's configuration where there is one, and the tuned one. What the user
    says of the engine the default has, too: its column then tells what limits do, and no flag.
    """
    budget, memory, cache = calibration.budget, calibration.memory, calibration.cache
    default = "your flags, no limits" if calibration.default_config else "vLLM defaults"
    hits = (cache.default_hit_rate, cache.hit_rate) if cache else (None, None)
    found = [Column(default, budget.default, memory.default, _cache(4, hits[0]) if cache else "")]
    if budget.yours and calibration.yours:
        size = calibration.yours.engine_config.get("mm_processor_cache_gb", 4)
        found.append(Column("yours", budget.yours, memory.yours or Memory(), _cache(size)))
    tuned = _cache(cache.mm_processor_cache_gb, hits[1]) if cache else ""
    return [*found, Column("tuned", budget.calibrated, memory.calibrated, tuned)]


def reservation_rows(calibration: CalibrationDocument) -> list[Row]:
    """What vLLM reserves in each of these configurations, and what items keep of their tokens."""
    compared = columns(calibration)
    return [*reserved_rows(compared), *_kept(calibration, len(compared) - 2)]


def _kept(calibration: CalibrationDocument, others: int) -> Iterator[Row]:
    """Per modality the share of their tokens that items keep on average, and the worst, of which
    nothing is known under the `others` between the default and the tuned configuration.
    """
    for modality, part in calibration.corpus.modalities.items():
        if part.kept is not None:
            worst = f" (worst {share(part.kept.worst)})" if part.kept.items_smaller else ""
            kept = f"{share(part.kept.mean)}{worst}"
            unknown = ("—",) * others
            yield f"{modality} tokens kept", share(1), *unknown, kept, part.label


def diff_heading(yours: YourConfiguration) -> str:
    return f"{yours.file or 'Your flags'}, tuned"


def diff_text(yours: YourConfiguration) -> str:
    """The diff, in which nothing hides."""
    return "".join(f"{plain(line.expandtabs())}\n" for line in yours.diff.split("\n")[:-1])


def yours_note(calibration: CalibrationDocument) -> str:
    """What the user's own column does not show, or why there is none; empty without one."""
    yours, budget = calibration.yours, calibration.budget.yours
    if yours and yours.refused:
        return f"vLLM refuses yours: {plain(yours.refused).rstrip('.')}."
    if budget is None or budget.adequacy is None or budget.adequacy >= ADEQUATE:
        return ""
    return (
        f"Yours reserves for {number(budget.profiled_tokens)} of the "
        f"{number(budget.worst_step_tokens)} tokens that a step may encode: mmcalib validate tells "
        "whether that may run out of memory."
    )


def reserved_rows(compared: Sequence[Column]) -> list[Row]:
    """The same of any configurations."""
    budgets = [one.budget for one in compared]
    label = budgets[-1].label
    largest = dict.fromkeys(m for one in budgets for m in one.max_tokens_per_item)
    found: list[Row] = [
        budget_row(compared),
        *(
            (
                f"largest {modality}, tokens",
                *(number(one.max_tokens_per_item.get(modality)) for one in budgets),
                label,
            )
            for modality in largest
        ),
    ]
    if any(one.resident_items for one in budgets):
        found.append(("large items at once", *map(_resident, budgets), label))
    found += [
        ("profiled at startup", *map(profile, budgets), label),
        ("profiled ÷ worst step, tokens", *map(_adequacy, budgets), label),
        (
            "max_num_batched_tokens",
            *(number(one.max_num_batched_tokens) for one in budgets),
            label,
        ),
    ]
    if compared[-1].cache:
        found.append(("processor cache, its hits", *(one.cache for one in compared), label))
    return [*found, *memory_rows(compared)]


def preprocessing(calibration: CalibrationDocument) -> str:
    """The CPU seconds of an item, with two digits: those of one run are no better."""
    found = calibration.preprocessing
    if found is None:
        return ""
    seconds = found.cpu_s_per_item
    said = f"{seconds:,.0f}" if seconds >= 10 else f"{seconds:.2g}"
    files = several(found.measured_files, "measured file")
    return f"Loading and processing an item takes {said} s of CPU ({found.label} from {files})"


def budget_row(compared: Sequence[Column]) -> Row:
    """What one step may encode."""
    budgets = [number(one.budget.encoder_budget_tokens) for one in compared]
    return ("encoder budget, tokens", *budgets, compared[-1].budget.label)


def _adequacy(budget: EncoderBudget) -> str:
    return "—" if budget.adequacy is None else f"{budget.adequacy:.2f}"


def _resident(budget: EncoderBudget) -> str:
    """How many of the corpus' largest items of each modality the encoder cache holds."""
    held = budget.resident_items
    return ", ".join(f"{number(held[m])} {m}" for m in held) or "—"


def _cache(size_gib: float, hit_rate: float | None = None) -> str:
    """The size of the processor cache, and the share of the requests' items that hit it."""
    return f"{size_gib:g} GiB" + ("" if hit_rate is None else f", {share(hit_rate)}")


def memory_rows(compared: Sequence[Column]) -> Iterator[Row]:
    """The figures of memory that are known of any of the configurations."""
    memories = [one.memory for one in compared]
    last = memories[-1]
    where = on_gpu(last)
    shown: tuple[tuple[str, str, Callable[[Any], str]], ...] = (
        ("weights", "weights_bytes", gib),
        ("activation peak", "activation_peak_bytes", gib),
        (f"KV cache{where}", "kv_cache_bytes", gib),
        (f"KV cache{where}, tokens", "kv_cache_tokens", number),
        ("requests of full length at once", "max_concurrency", number),
    )
    for what, name, spoken in shown:
        values = [getattr(one, name) for one in memories]
        if any(value is not None for value in values):
            cells = list(map(spoken, values))
            if name == "kv_cache_bytes":
                cells = list(map(kv_cache, memories))
            yield (what, *cells, last.labels.get(name) or last.label or "measured")


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


def tensor_cells(one: LiveTensor) -> tuple[str, str, str, str]:
    """How much it takes, its shape, its type, and what made it."""
    shape = " × ".join(wording.number(size) for size in one.shape)
    operation = one.operation.removeprefix("aten.").partition(".")[0]
    return wording.gib(one.nbytes), shape, one.dtype, f"{one.module or 'inputs'} ({operation})"


def cell(value: object) -> str:
    """Text that neither ends its table cell nor becomes markup."""
    text = wording.plain(str(value))
    for special in "\\`*_[]<>|&$~":
        text = text.replace(special, f"\\{special}")
    return text
