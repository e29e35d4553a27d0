"""Memory fixes: the type, the catalogue, the goal, and what `--keep` forbids."""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, get_args

from mmcalib.domain.knobs import Knob, Value, merge_nested
from mmcalib.domain.memory import Budget, RehearsedMemory
from mmcalib.domain.shapes import Modality
from mmcalib.errors import UsageError
from mmcalib.releases.constants import GPU_MEMORY_UTILIZATION, SMALL_GPU_BATCHED_TOKENS
from mmcalib.text import GIB, flag

# Costs of a fix to the user, cheapest first.
Cost = Literal[
    "nothing", "KV cache", "requests", "speed", "quality", "most of the speed", "hardware"
]
COSTS: tuple[Cost, ...] = get_args(Cost)

# Severity above that of every context length and every cap.
LAST_SEVERITY: Final = 4

_LIMIT = "limit_mm_per_prompt"


@dataclass(frozen=True, slots=True)
class Fix:
    """One change of a configuration. Fixes of one `knob` are levels: a higher one replaces a lower
    one. `severity` orders fixes of one cost; `alone`: rehearsed alone; `combines`: a plan may use
    it; `untried`: why it is not rehearsed. Items of modality `shrinks` get smaller.
    """

    name: str
    knob: str
    changes: Mapping[str, Any] = field(hash=False)
    cost: Cost
    price: str
    level: int = 0
    severity: int = 0
    alone: bool = True
    combines: bool = True
    untried: str = ""
    shrinks: Modality | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of a configuration. `refusal`: vLLM's reason to reject it."""

    reached: bool
    lacking_bytes: int
    refusal: str = field(default="")


def format_flags(changes: Mapping[str, Any]) -> str:
    """Write whole values of engine arguments as flags of `vllm serve`."""
    words = []
    for name, value in changes.items():
        if value is True:
            words.append(flag(name))
        elif isinstance(value, Mapping | list):
            words.append(f"{flag(name)} {shlex.quote(json.dumps(value))}")
        else:
            words.append(f"{flag(name)} {value}")
    return " ".join(words)


def highest_levels(fixes: Iterable[Fix]) -> tuple[Fix, ...]:
    """Keep only the highest level of each knob, in order."""
    fixes = tuple(fixes)
    highest: dict[str, int] = {}
    for fix in fixes:
        highest[fix.knob] = max(fix.level, highest.get(fix.knob, fix.level))
    return tuple(fix for fix in fixes if fix.level == highest[fix.knob])


def changed_args(engine_args: Mapping[str, Any], fixes: Iterable[Fix]) -> dict[str, Any]:
    """The engine arguments that the fixes change, with their new values."""
    args = dict(engine_args)
    touched: dict[str, None] = {}
    for fix in highest_levels(fixes):
        touched.update(dict.fromkeys(fix.changes))
        for name, value in fix.changes.items():
            if name == _LIMIT:
                args[name] = _lower_limits(args.get(name), value)
            else:
                args = merge_nested(args, {name: value})
    return {name: args[name] for name in touched}


def _lower_limits(old: Any, new: Mapping[str, Any]) -> dict[str, Any]:
    """Take the lower of two limits, with the options of both unless `new` sets them to None."""
    limits = dict(old or {})
    for modality, value in new.items():
        both = [_options(limits[modality])] if modality in limits else []
        both.append(_options(value))
        counts = [options["count"] for options in both if "count" in options]
        options = {name: v for one in both for name, v in one.items() if name != "count"}
        options = {name: value for name, value in options.items() if value is not None}
        if counts and (not options or min(counts) == 0):
            limits[modality] = min(counts)
        else:
            limits[modality] = {**({"count": min(counts)} if counts else {}), **options}
    return limits


def _options(limit: Any) -> dict[str, Any]:
    return dict(limit) if isinstance(limit, Mapping) else {"count": limit}


def item_limit(engine_args: Mapping[str, Any], modality: str) -> int | None:
    """Items of a modality that the arguments allow in a prompt; None if not set."""
    limits = engine_args.get(_LIMIT) or {}
    return _options(limits[modality]).get("count") if modality in limits else None


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts that decide which fixes apply: the rehearsal without any, and its budget."""

    memory: RehearsedMemory
    budget: Budget
    knobs: tuple[Knob, ...]
    chunks_mm_input: bool
    quantized: bool
    attention_heads: int | None  # Of the language model, if known.
    most_sequences: int | None = None  # The max_num_seqs of vLLM's error, if it names one.


_TIMES = {"": 1, "k": 10**3, "m": 10**6, "K": 2**10, "M": 2**20}
_COUNT = re.compile(r"(\d{1,12}(?:\.\d{1,6})?)([kmKM]?)", re.ASCII)


def parse_count(text: str) -> float | None:
    """Parse `200k`; None if invalid."""
    match = _COUNT.fullmatch(text)
    return float(match[1]) * _TIMES[match[2]] if match else None


_AT_LEAST = re.compile(r"(concurrency|kv_tokens)\s*>=\s*(\S+)", re.ASCII)


@dataclass(frozen=True, slots=True)
class Goal:
    """The engine starts (`fits`), or has `at_least` full requests or tokens of KV cache."""

    kind: Literal["fits", "concurrency", "kv_tokens"] = "fits"
    at_least: float = 0

    def __str__(self) -> str:
        return self.kind if self.kind == "fits" else f"{self.kind}>={self.at_least:g}"

    def is_reached(self, memory: RehearsedMemory) -> bool:
        if not memory.starts or memory.kv_cache_tokens is None or memory.max_concurrency is None:
            return False
        concurrent = self.kind == "concurrency"
        figure = memory.max_concurrency if concurrent else memory.kv_cache_tokens
        return self.kind == "fits" or figure >= self.at_least

    def lacking_bytes(self, memory: RehearsedMemory, max_model_len: int) -> int:
        """KV cache missing for the goal, 0 if reached; too much if some layers keep a window."""
        if self.is_reached(memory):
            return 0
        tokens = {
            "fits": float(max_model_len),
            "concurrency": self.at_least * max_model_len,
            "kv_tokens": max(self.at_least, max_model_len),
        }[self.kind]
        return max(1, round(tokens * memory.kv_bytes_per_token) - memory.kv_cache_bytes)


def parse_goal(text: str) -> Goal:
    """Parse `fits`, `concurrency>=16` or `kv_tokens>=200k`. Raises UsageError."""
    text = text.strip()
    if text == "fits":
        return Goal()
    match = _AT_LEAST.fullmatch(text)
    at_least = parse_count(match[2]) if match else None
    if match is None or not at_least:
        hint = "--goal fits, --goal 'concurrency>=16' or --goal 'kv_tokens>=200k'"
        raise UsageError(f"--goal {text!r} is not a goal", hint=hint)
    return Goal("concurrency" if match[1] == "concurrency" else "kv_tokens", at_least)


# A fix lowers these; the others it changes completely or not.
_LEAST: Final = ("max_model_len", "max_num_seqs", "max_num_batched_tokens")
KEEPABLE: Final = (
    *_LEAST,
    "limit_mm_per_prompt",
    "language_model_only",
    "mm_processor_kwargs",
    "media_io_kwargs",
    "kv_cache_dtype",
    "quantization",
    "gpu_memory_utilization",
    "enforce_eager",
    "max_cudagraph_capture_size",
    "cpu_offload_gb",
    "tensor_parallel_size",
    "mm_processor_cache_gb",
)


@dataclass(frozen=True, slots=True)
class Constraints:
    """The least value of each named argument; None if it may not change."""

    least: Mapping[str, int | None] = field(default_factory=dict)

    def allows(self, fix: Fix) -> bool:
        return all(self._allows(name, value) for name, value in fix.changes.items())

    def clip(self, name: str, values: Iterable[int]) -> list[int]:
        """The values that the argument may take, descending, with its least."""
        least = self.least.get(name) or 0
        return sorted({max(value, least) for value in values}, reverse=True)

    def _allows(self, name: str, value: object) -> bool:
        if name not in self.least:
            return True
        least = self.least[name]
        return least is not None and isinstance(value, int) and value >= least


NO_CONSTRAINTS: Final = Constraints()


def parse_constraints(texts: Iterable[str]) -> Constraints:
    """Parse `max_model_len=32k` or `kv_cache_dtype`, as flags or arguments. Raises UsageError."""
    return Constraints(dict(map(_parse_constraint, texts)))


def _parse_constraint(text: str) -> tuple[str, int | None]:
    name, equals, value = (part.strip() for part in text.partition("="))
    name = name.lstrip("-").replace("-", "_")
    if name not in KEEPABLE:
        hint = "one of " + ", ".join(KEEPABLE)
        raise UsageError(f"--keep {text!r}: no fix changes {flag(name)}", hint=hint)
    if not equals:
        return name, None
    least = parse_count(value)
    if name not in _LEAST or not least:
        hint = f"--keep {name}" + (", or --keep max_model_len=32k" if name in _LEAST else "")
        raise UsageError(f"--keep {text!r}: invalid value for {name}", hint=hint)
    return name, int(least)


UTILIZATION: Final = "gpu_memory_utilization"
# The knob of a fix that may only shrink the profile.
SIZE_HINT: Final = "size hint"
HOST_ONLY: Final = "host memory only"
# For a GPU that serves nothing else; driver and display need some hundred MiB.
MOST_UTILIZATION: Final = 0.95
_MODEL_LENS: Final = (32_768, 16_384, 8_192, 4_096)
# Size hints to try if the media are unknown.
_HINTS: Final[Mapping[str, Mapping[str, int]]] = {
    "image": {"width": 1_024, "height": 1_024},
    "video": {"num_frames": 32, "width": 640, "height": 640},
}
_GRAPH_SIZE: Final = 16
_SEQS: Final = (64, 16)
# vLLM's own default on smaller GPUs, and half of it.
_BATCHED_TOKENS: Final = (SMALL_GPU_BATCHED_TOKENS, SMALL_GPU_BATCHED_TOKENS // 2)
_SIXTEEN_BITS: Final = ("auto", "bfloat16", "float16")
# Divisors of the weights.
_OFFLOADED: Final = (4, 2)
_RANKS: Final = (2, 4, 8)


@dataclass(frozen=True, slots=True)
class FixContext:
    """The configuration as it is, the goal that it misses, and what fixes may not change."""

    engine_args: Mapping[str, Any]
    facts: Facts
    goal: Goal
    constraints: Constraints = NO_CONSTRAINTS


def propose_fixes(
    engine_args: Mapping[str, Any], facts: Facts, goal: Goal, kept: Constraints = NO_CONSTRAINTS
) -> list[Fix]:
    """Fixes that change these engine arguments, the mildest level of each knob first."""
    unfixed = FixContext(engine_args, facts, goal, kept)
    return [fix for propose in _FIXES for fix in propose(unfixed) if kept.allows(fix)]


def _set(argument: str, value: Any, cost: Cost, price: str, *, knob: str = "", **more: Any) -> Fix:
    """Make a fix that gives one engine argument this value; `more` are other fields of it."""
    return Fix(argument, knob or argument, {argument: value}, cost, price, **more)


def _levels(
    knob: str,
    steps: Iterable[tuple[Value, str]],
    cost: Cost,
    changes: Callable[[Value], Mapping[str, Any]] | None = None,
    shrinks: Modality | None = None,
) -> Iterator[Fix]:
    """Make a fix for each value with its price, mildest first: of the argument, or by `changes`."""
    for level, (value, price) in enumerate(steps):
        yield Fix(
            name=f"{knob}={value}",
            knob=knob,
            changes=changes(value) if changes else {knob: value},
            cost=cost,
            price=price,
            level=level,
            severity=level,
            alone=level == 0,
            shrinks=shrinks,
        )


def _utilization(unfixed: FixContext) -> Iterator[Fix]:
    memory, now = unfixed.facts.memory, unfixed.engine_args.get(UTILIZATION, GPU_MEMORY_UTILIZATION)
    most = min(MOST_UTILIZATION, memory.most_utilization)
    left = ((now - most) * memory.total_bytes + memory.outside_bytes) / GIB
    if most > now:
        price = f"if nothing else starts on the GPU: {left:.2f} GiB stay free"
        yield _set(UTILIZATION, most, "nothing", price)
    elif 0 < most < now and memory.most_utilization < now:
        price = f"the most that starts next to the other processes: {left:.2f} GiB stay free"
        yield _set(UTILIZATION, most, "KV cache", price)


def _context(unfixed: FixContext) -> Iterator[Fix]:
    shorter = (
        (tokens, f"prompt and answer have at most {tokens:,} tokens together")
        for tokens in unfixed.constraints.clip("max_model_len", _MODEL_LENS)
        if tokens < unfixed.facts.budget.max_model_len
    )
    yield from _levels("max_model_len", shorter, "requests")


def _modalities(unfixed: FixContext) -> Iterator[Fix]:
    args, served = unfixed.engine_args, unfixed.facts.budget.max_tokens_per_item
    main = "image" if "image" in served else next(iter(served), "")
    for modality in (m for m in served if m != main):
        yield Fix(
            name=f"no {modality}",
            knob=f"limit {modality}",
            changes={"limit_mm_per_prompt": {modality: 0}},
            cost="requests",
            price=f"no request may contain {modality}",
            severity=1,
            # A limit set by the user means that the modality is served.
            combines=not item_limit(args, modality),
        )
    if several := {m: 1 for m in served if (item_limit(args, m) or 2) > 1}:
        yield Fix(
            name="one item of each modality",
            knob="limits",
            changes={"limit_mm_per_prompt": several},
            cost="requests",
            price="a prompt contains at most one " + ", one ".join(several),
            # vLLM budgets for one item of each, regardless of the count (vllm#38459).
            combines=False,
        )
    name, price = "language_model_only", "text only: the encoder is not loaded"
    yield _set(name, True, "requests", price, severity=LAST_SEVERITY, combines=False)


def _caps(unfixed: FixContext) -> Iterator[Fix]:
    for knob in unfixed.facts.knobs:
        if knob.modality in unfixed.facts.budget.max_tokens_per_item:
            value: Any = unfixed.engine_args
            for key in knob.key_path():
                value = value.get(key) if isinstance(value, Mapping) else None
            yield from _cap(knob, value if isinstance(value, int | float) else knob.value)


def _cap(knob: Knob, now: Value) -> Iterator[Fix]:
    values = {price: value for value, price in knob.reductions() if value < now}
    steps = ((value, price) for price, value in values.items())
    return _levels(
        knob.name,
        steps,
        "quality",
        changes=lambda value: {knob.argument: knob.kwargs(value)},
        shrinks=knob.modality,
    )


def _hint(unfixed: FixContext) -> Iterator[Fix]:
    """A size hint for the profiled modality; never combined: most change only the profile."""
    items = unfixed.facts.budget.max_tokens_per_item
    largest = max(items, key=lambda m: (items[m], m), default="")
    if hint := _HINTS.get(largest):
        yield Fix(
            name=f"size hint for {largest}",
            knob=SIZE_HINT,
            changes={"limit_mm_per_prompt": {largest: dict(hint)}},
            cost="requests",
            price=f"vLLM profiles with a smaller {largest}",
            severity=LAST_SEVERITY,
            combines=False,
        )


def _graphs(unfixed: FixContext) -> Iterator[Fix]:
    if unfixed.engine_args.get("enforce_eager"):
        return
    if not unfixed.engine_args.keys() & {"cudagraph_capture_sizes", "compilation_config"}:
        price = f"steps of more than {_GRAPH_SIZE} tokens run without CUDA graphs"
        yield _set("max_cudagraph_capture_size", _GRAPH_SIZE, "speed", price, knob="cuda graphs")
    price = "no CUDA graphs and no compiled code: slower answers, quicker start"
    yield _set("enforce_eager", True, "speed", price, knob="cuda graphs", level=1, severity=1)


def _seqs(unfixed: FixContext) -> Iterator[Fix]:
    least = unfixed.goal.at_least if unfixed.goal.kind == "concurrency" else 1
    most = unfixed.facts.most_sequences
    fewer = (
        (count, f"at most {count} requests run at once")
        for count in unfixed.constraints.clip("max_num_seqs", (*_SEQS, most or _SEQS[0]))
        if least <= count < unfixed.facts.budget.max_num_seqs
    )
    yield from _levels("max_num_seqs", fewer, "speed")


def _batched_tokens(unfixed: FixContext) -> Iterator[Fix]:
    budget, chunks = unfixed.facts.budget, unfixed.facts.chunks_mm_input
    largest = max(budget.max_tokens_per_item.values(), default=0)
    for tokens in unfixed.constraints.clip("max_num_batched_tokens", _BATCHED_TOKENS):
        needed = max(tokens, budget.max_num_seqs, 0 if chunks else largest)
        if needed < budget.max_num_batched_tokens:
            price = f"vLLM reads prompts {needed:,} tokens at a time: slower first answers"
            yield _set("max_num_batched_tokens", needed, "speed", price)
            return


def _eight_bits(unfixed: FixContext) -> Iterator[Fix]:
    if str(unfixed.engine_args.get("kv_cache_dtype", "auto")) in _SIXTEEN_BITS:
        yield _set("kv_cache_dtype", "fp8", "quality", "the KV cache stores 8-bit values")
    if not unfixed.facts.quantized and not unfixed.engine_args.get("quantization"):
        price = (
            "vLLM quantizes the weights to 8 bits at each start: measure the answers, or use a "
            "checkpoint that was quantized with care"
        )
        yield _set("quantization", "fp8", "quality", price, severity=LAST_SEVERITY)


def _offload(unfixed: FixContext) -> Iterator[Fix]:
    before = float(unfixed.engine_args.get("cpu_offload_gb") or 0)
    sizes = {math.ceil(unfixed.facts.memory.weights_bytes / share / GIB) for share in _OFFLOADED}
    larger = sorted(size for size in sizes if size > before)
    more = ((size, f"every step reads {size} GiB of weights from host memory") for size in larger)
    yield from _levels("cpu_offload_gb", more, "most of the speed")


def _ranks(unfixed: FixContext) -> Iterator[Fix]:
    # vLLM rejects a number of ranks that does not divide the heads.
    heads = unfixed.facts.attention_heads or max(_RANKS)
    now = unfixed.facts.memory.tensor_parallel_size
    more = [n for n in _RANKS if n > now and heads % n == 0]
    steps = ((n, f"{n} of these GPUs") for n in more)
    yield from _levels("tensor_parallel_size", steps, "hardware")


def _host(_: FixContext) -> Iterator[Fix]:
    """Fixes that guides recommend but that free no GPU memory: shown, and not rehearsed."""
    price = "no cache of processed media: 4 GiB less for each process that has one"
    yield _set("mm_processor_cache_gb", 0, "speed", price, combines=False, untried=HOST_ONLY)
    name, price = "VLLM_CPU_KVCACHE_SPACE", "sizes the KV cache of vLLM's CPU backend only"
    yield Fix(name, name, {}, "speed", price, combines=False, untried=HOST_ONLY)


# A report shows fixes of the same cost in this order.
_FIXES: Final = (
    *(_utilization, _context, _modalities, _caps, _hint, _graphs, _seqs, _batched_tokens),
    *(_eight_bits, _offload, _ranks, _host),
)
