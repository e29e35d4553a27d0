"""Table rows and sentences that all renderings share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from mmcalib.checks.memory import reserve_left
from mmcalib.domain.knobs import Label
from mmcalib.domain.memory import LiveTensor
from mmcalib.limits.demand import thin_steps
from mmcalib.limits.values import MIN_RESERVE_RATIO
from mmcalib.releases.constants import PROCESSOR_CACHE_GIB, VLLM_SLACK_BYTES
from mmcalib.remedies import log
from mmcalib.results.calibration import CalibrationDocument, YourConfiguration
from mmcalib.results.memory import EncoderBudget, Memory, ServedTraffic, TrafficFigures
from mmcalib.results.part import CheckResult, verdict_words
from mmcalib.text import gib, number, plural, printable, ratio, share

# The worst first.
MARKS = {"fail": "FAIL", "warn": "warn", "skip": "skip", "pass": "ok"}
STYLES = {"pass": "green", "warn": "yellow", "fail": "red", "skip": "dim"}


def worst_first(checks: Iterable[CheckResult]) -> list[CheckResult]:
    """Sort checks by status; those of one status keep their order."""
    return sorted(checks, key=lambda check: list(MARKS).index(check.status))


# A name, a value for each configuration, and how the last value is known.
Row = tuple[str, ...]


# The memory figures, as all tables name them.
FIGURES: Final = {
    **log.FIGURES,
    "requested_bytes": "requested",
    "buffers_bytes": "buffers",
    "stack_bytes": "   kernels' stacks",
    "activation_peak_bytes": "activation peak",
    "encoder_cache_bytes": "full encoder cache, part of the peak",
    "non_torch_bytes": "outside torch",
    "cudagraph_bytes": "CUDA graphs",
    "spare_bytes": "kept free",
    "max_concurrency": "full-length requests at once",
    "outside_bytes": "free outside the reserve",
}
# What a start takes of the requested memory, and what the rest holds.
PARTS: Final = (
    *("weights_bytes", "buffers_bytes", "activation_peak_bytes"),
    *("non_torch_bytes", "cudagraph_bytes"),
)
CAPACITY: Final = ("kv_cache_bytes", "kv_cache_tokens", "max_concurrency")


@dataclass(frozen=True, slots=True)
class Column:
    """One of the compared configurations, and its memory."""

    name: str
    budget: EncoderBudget
    memory: Memory
    cache: str = ""


def columns(calibration: CalibrationDocument) -> list[Column]:
    """vLLM's defaults with the user's own flags, the user's configuration, and the tuned one."""
    budget, memory, cache = calibration.budget, calibration.memory, calibration.cache
    default = "without limits" if calibration.default_config else "vLLM defaults"
    before = _cache(PROCESSOR_CACHE_GIB, cache.default_hit_rate) if cache else ""
    after = _cache(cache.mm_processor_cache_gb, cache.hit_rate) if cache else ""
    found = [Column(default, budget.default, memory.default, before)]
    if budget.yours and calibration.yours:
        size = calibration.yours.engine_config.get("mm_processor_cache_gb", PROCESSOR_CACHE_GIB)
        found.append(Column("yours", budget.yours, memory.yours or Memory(), _cache(size)))
    return [*found, Column("tuned", budget.calibrated, memory.calibrated, after)]


def _cache(size_gib: float, hit_rate: float | None = None) -> str:
    return f"{size_gib:g} GiB" + ("" if hit_rate is None else f", {share(hit_rate)}")


def reservation_rows(calibration: CalibrationDocument) -> list[Row]:
    """The memory of each configuration, and the mean and worst share of tokens kept."""
    compared = columns(calibration)
    found = reserved_rows(compared)
    for modality, part in calibration.corpus.modalities.items():
        if part.kept is not None:
            worst = f" (worst {share(part.kept.worst)})" if part.kept.items_smaller else ""
            unknown = ("—",) * (len(compared) - 2)
            kept = f"{share(part.kept.mean)}{worst}"
            found.append((f"{modality} tokens kept", share(1), *unknown, kept, part.label))
    return found


def diff_heading(yours: YourConfiguration) -> str:
    """Name the file that the diff changes."""
    return f"{yours.file or 'Your flags'}, tuned"


def diff_text(yours: YourConfiguration) -> str:
    """The diff, with control characters escaped."""
    return "".join(f"{printable(line.expandtabs())}\n" for line in yours.diff.split("\n")[:-1])


def yours_note(calibration: CalibrationDocument) -> str:
    """A note on the user's own column, or why it is missing; else empty."""
    yours, budget = calibration.yours, calibration.budget.yours
    if yours and yours.refused:
        return f"vLLM rejects your configuration: {printable(yours.refused).rstrip('.')}."
    if budget is None or budget.adequacy is None or budget.adequacy >= MIN_RESERVE_RATIO:
        return ""
    return (
        f"Your configuration reserves {number(budget.profiled_tokens)} of the "
        f"{number(budget.worst_step_tokens)} tokens that a step may encode. Check it with mmcalib "
        "validate."
    )


def reserved_rows(compared: Sequence[Column]) -> list[Row]:
    """The encoder budget, first of all, and the memory of any configurations."""
    budgets = [one.budget for one in compared]
    largest = dict.fromkeys(m for one in budgets for m in one.max_tokens_per_item)
    cells = {"encoder budget, tokens": [number(one.encoder_budget_tokens) for one in budgets]}
    for m in largest:
        cells[f"largest {m}, tokens"] = [number(one.max_tokens_per_item.get(m)) for one in budgets]
    if any(one.resident_items for one in budgets):
        held = [one.resident_items for one in budgets]
        cells["large items at once"] = [
            ", ".join(f"{number(count)} {m}" for m, count in of.items()) or "—" for of in held
        ]
    cells["profiled at startup"] = list(map(profile, budgets))
    cells["profiled ÷ largest step, tokens"] = [ratio(one.adequacy) for one in budgets]
    cells["max_num_batched_tokens"] = [number(one.max_num_batched_tokens) for one in budgets]
    if compared[-1].cache:
        cells["processor cache, hit rate"] = [one.cache for one in compared]
    found: list[Row] = [(what, *values, budgets[-1].label) for what, values in cells.items()]
    return [*found, *memory_rows(compared)]


def profile(budget: EncoderBudget) -> str:
    """The items of vLLM's startup profile."""
    if budget.profiled_modality is None:
        return "nothing"
    return f"{budget.profiled_items} × {printable(budget.profiled_modality)}"


def memory_rows(compared: Sequence[Column]) -> Iterator[Row]:
    """The memory figures that any of the configurations has."""
    memories = [one.memory for one in compared]
    where = next(filter(None, map(on_gpu, reversed(memories))), "")
    for field in ("requested_bytes", *PARTS, *CAPACITY):
        known = [one for one in memories if getattr(one, field) is not None]
        if known:
            name = FIGURES[field].replace("KV cache", f"KV cache{where}")
            cells = [figure(field, getattr(one, field)) for one in memories]
            if field == "kv_cache_bytes":
                cells = list(map(kv_cache, memories))
            yield (name, *cells, label_of(known[-1], field))


def figure(field: str, value: float | None) -> str:
    """A figure in words; a dash if it is unknown."""
    return gib(value) if field.endswith("_bytes") else number(value)


def label_of(memory: Memory, field: str) -> Label:
    """How a memory figure is known."""
    return memory.labels.get(field) or memory.label or "measured"


def gpus_of(memory: Memory) -> str:
    """Such as `L4` or `4 × L4`; empty without a GPU."""
    gpu = printable(memory.gpu or "")
    return f"{memory.ranks} × {gpu}" if gpu and memory.ranks > 1 else gpu


def on_gpu(memory: Memory) -> str:
    """Such as ` on L4` or ` on each of 4 × L4`; empty without a GPU."""
    return f" on {'each of ' * (memory.ranks > 1)}{gpus_of(memory)}" if memory.gpu else ""


def kv_cache(memory: Memory) -> str:
    """The KV cache in GiB, and a note if the engine would not start with it."""
    # Below zero even an empty cache does not fit; a full-length request needs more.
    return gib(memory.kv_cache_bytes) + (", would not start" if memory.starts is False else "")


def preprocessing(calibration: CalibrationDocument) -> str:
    """The CPU seconds of an item in two digits, as precise as one run is."""
    found = calibration.preprocessing
    if found is None:
        return ""
    seconds = found.cpu_s_per_item
    spoken = f"{seconds:,.0f}" if seconds >= 10 else f"{seconds:.2g}"
    files = plural(found.measured_files, "measured file")
    return f"Loading and processing an item takes {spoken} s of CPU ({found.label} from {files})"


def chat_line(calibration: CalibrationDocument) -> str:
    """How many items all turns of a chat hold, by modality; empty without items in the context."""
    parts = list[str]()
    for modality, chat in calibration.conversations.items():
        median = chat.typical
        held = plural(median.items, {"audio": "clip"}.get(modality, modality))
        held += f" or {median.sound_s / 60:.1f} min" if median.sound_s else ""
        which = f"{median.limit.replace('max_model_len', 'context')} full"
        if median.limit == "limit_mm_per_prompt":
            most = dict.fromkeys(map(number, (chat.largest.most_items, median.most_items)))
            which = f"{'-'.join(most)}{'' if parts else ' would fit'}"
        parts.append(f"{held} ({which})")
    labels = [chat.label for chat in calibration.conversations.values()]
    label = "answer length assumed" if "assumed" in labels else "computed"
    return f"A chat holds {', '.join(parts)}; {label}" if parts else ""


CHAT_HEAD: Final = (
    *("item", "tokens", "text and answer, tokens", "items in a chat", "ended by"),
    *("with a higher count", "label"),
)


def chat_rows(calibration: CalibrationDocument) -> list[Row]:
    """The chats of the median and of the largest item of each modality."""
    return [
        (
            f"{which} {modality} ({item.shape})",
            *map(number, (item.tokens, chat.turn_tokens)),
            number(item.items) + (f" ({item.sound_s / 60:.1f} min)" if item.sound_s else ""),
            item.limit,
            number(item.most_items),
            chat.label,
        )
        for modality, chat in calibration.conversations.items()
        for which, item in (("median", chat.typical), ("largest", chat.largest))
    ]


def verdict_of(calibration: CalibrationDocument) -> str:
    """The verdict, with the assumptions and warnings of a pass."""
    return verdict_words(calibration.verdict, calibration.checks, calibration.corpus.losses())


def check_line(check: CheckResult) -> str:
    return printable(f"{check.code} {check.name}: {check.detail}".lstrip())


def tensor_cells(tensor: LiveTensor) -> tuple[str, str, str, str]:
    """Size, shape, type and origin of a tensor."""
    shape = " × ".join(map(number, tensor.shape))
    operation = tensor.operation.removeprefix("aten.").partition(".")[0]
    return gib(tensor.nbytes), shape, tensor.dtype, f"{tensor.module or 'inputs'} ({operation})"


def rehearsed_rows(memory: Memory) -> list[tuple[str, str, str]]:
    """A rehearsal from requested memory to KV cache: (name, size, label)."""
    found: list[tuple[str, str, str]] = []

    def add(field: str, sign: str = "", more: str = "") -> None:
        value = getattr(memory, field)
        words = (sign if value else "") + figure(field, value)
        found.append((FIGURES[field] + more, words, label_of(memory, field)))

    add("requested_bytes")
    for field in PARTS:
        add(field, "− ", ", the highest of" if field == "activation_peak_bytes" else "")
        if field == "buffers_bytes" and memory.stack_bytes:
            add("stack_bytes")
        if field == "activation_peak_bytes":
            label = label_of(memory, field)
            found += [(f"   {p}", gib(size), label) for p, size in sorted(memory.phases.items())]
    if memory.mode == "extensible":
        found.append((FIGURES["spare_bytes"], f"− {gib(memory.spare_bytes)}", "computed"))
    for field in CAPACITY:
        add(field)
    if memory.kv_cache_range_bytes:
        least, most = map(gib, memory.kv_cache_range_bytes)
        found.append(("KV cache, as the host's use varies", f"{least} to {most}", "assumed"))
    for one in memory.before_snapshot:
        found.append((f"{one.name}, before vLLM looks", gib(one.nbytes), one.label))
    if (outside := memory.outside_bytes) is not None:
        name = "more than is free" if outside < 0 else FIGURES["outside_bytes"]
        found.append((name, gib(abs(outside)), label_of(memory, "outside_bytes")))
    for one in memory.after_pool:
        found.append((f"   {one.name}, after the KV cache", f"− {gib(one.nbytes)}", one.label))
    return found


TIMELINE_HEAD: Final = (
    *("step", "highest", "held", "encoder cache alive", "tokens", "running", "waiting"),
)
_TIMELINE_ROWS: Final = 60


def timeline_rows(traffic: TrafficFigures) -> list[Row]:
    """The highest point of each stretch of the timeline."""
    places = thin_steps([step.peak_bytes for step in traffic.timeline], _TIMELINE_ROWS)
    return [
        (
            number(one.step),
            *map(gib, (one.peak_bytes, one.held_bytes, one.alive_bytes)),
            *map(number, (one.tokens, one.scheduled, one.waiting)),
        )
        for one in map(traffic.timeline.__getitem__, places)
    ]


def traffic_rows(traffic: TrafficFigures) -> list[tuple[str, str, str]]:
    """(name, value, remark) of each figure."""
    return [
        ("highest step", gib(traffic.peak_bytes), "rehearsed"),
        ("reserved at startup", gib(traffic.reserved_bytes), "rehearsed"),
        ("left free", gib(traffic.outside_bytes), "by gpu_memory_utilization"),
        ("steps", number(traffic.steps), f"at most {number(traffic.concurrency)} requests at once"),
        (
            "KV blocks, most",
            f"{number(traffic.most_kv_blocks)} of {number(traffic.kv_blocks)}",
            f"{number(traffic.preemptions)} preempted",
        ),
        (
            "encoder cache, most",
            f"{number(traffic.most_cache_tokens)} of {number(traffic.cache_tokens)}",
            f"tokens: {gib(traffic.cache_logical_bytes)}, "
            f"and {gib(traffic.cache_alive_bytes)} kept alive",
        ),
        (
            "items encoded",
            number(traffic.encoded_items),
            f"{number(traffic.reused_items)} reused from the cache, "
            f"{number(traffic.encoder_waits)} waited for the encoder",
        ),
        ("prompt tokens reused", number(traffic.cached_tokens), "prefix cache"),
    ]


def compared_traffic_rows(served: ServedTraffic) -> list[Row]:
    """The rows of the tuned configuration, each with that of the default."""
    rows = traffic_rows(served.calibrated)
    others = traffic_rows(served.default) if served.default else [()] * len(rows)
    return [(*row, *other[1:]) for row, other in zip(rows, others, strict=True)]


# Most requests of the highest step to name.
_NAMED: Final = 4


def highest_line(traffic: TrafficFigures) -> str:
    """The tokens and requests of the highest step; empty without one."""
    highest, steps = traffic.highest, {one.step: one for one in traffic.timeline}
    if highest is None or highest.number not in steps:
        return ""
    step = steps[highest.number]
    line = f"Step {number(step.step)}: {number(step.tokens)} tokens"
    if step.encoder_tokens:
        line += f", and {number(step.encoder_tokens)} from the encoder"
    named = highest.encoding or highest.origins
    more = f" and {len(named) - _NAMED} more" if len(named) > _NAMED else ""
    return f"{line}, for {', '.join(named[:_NAMED])}{more}"


def load_cells(default: TrafficFigures | None, tuned: TrafficFigures) -> tuple[str, str]:
    """Say whether every step has memory, and what of the reserve and preemptions got worse."""
    cells = [_holds_under_load(default), _holds_under_load(tuned)]
    if default is None or tuned.status == "fail":
        return cells[0], cells[1]
    left = [reserve_left(one, default) for one in (default, tuned)]
    if 0 <= left[1] < min(left[0], VLLM_SLACK_BYTES):
        cells = [f"{cell}, {gib(nbytes)} left" for cell, nbytes in zip(cells, left, strict=True)]
    paused = default.preemptions, tuned.preemptions
    if paused[1] > paused[0]:
        cells = [f"{cell}, {number(n)} preempted" for cell, n in zip(cells, paused, strict=True)]
    return cells[0], cells[1]


def _holds_under_load(traffic: TrafficFigures | None) -> str:
    if traffic is None:
        return "—"
    if traffic.status == "fail":
        return f"no, {gib(-traffic.margin_bytes - traffic.outside_bytes)} short"
    if traffic.status != "pass":
        return "yes, unreserved"
    return "yes" if traffic.margin_bytes >= 0 else "yes, within slack"


def traffic_sentence(traffic: TrafficFigures) -> str:
    left = gib(abs(traffic.margin_bytes))
    if traffic.status == "pass" and traffic.margin_bytes >= 0:
        return f"Every step stays within the startup reserve; {left} stay unused."
    over = f"The highest step takes {left} more than the startup reserve"
    if traffic.status == "pass":
        return f"{over}, within vLLM's own slack."
    if traffic.status == "warn":
        return f"{over} and fits in the memory that gpu_memory_utilization leaves free."
    remedy = ""
    if share := traffic.shortfall.fitting_utilization():
        remedy = f"; gpu_memory_utilization {share:g} leaves enough"
    return f"{over} and more than the GPU has: out of memory{remedy}."


def cell(value: object) -> str:
    """Text for a Markdown table cell, with markup escaped."""
    text = printable(str(value))
    for special in "\\`*_[]<>|&$~":
        text = text.replace(special, f"\\{special}")
    return text
