"""Remedies for memory: their prices and order, the goal, what `--keep` forbids, and the search.

The search follows the order of levers. It keeps each remedy that helps, stops at the goal, and then
drops every remedy that the goal does not need.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final, Literal

from mmcalib.domain.knobs import Knob, merge_nested
from mmcalib.domain.memory import Budget, RehearsedMemory, floor_utilization
from mmcalib.errors import UsageError
from mmcalib.limits.policy import COSTS, TEXT_RESERVE_TOKENS, Cost
from mmcalib.limits.values import LIMIT, plain_counts, size_hint
from mmcalib.logs.starts import StartupLog, last_failed, read_starts
from mmcalib.releases.constants import SMALL_GPU_BATCHED_TOKENS, VLLM_SLACK_BYTES
from mmcalib.text import flag, gib, serve_option

UTILIZATION: Final = "gpu_memory_utilization"
CACHE_BYTES: Final = "kv_cache_memory_bytes"
BATCH: Final = "max_num_batched_tokens"
# What remedies set, its cost, and its price in words; none where that depends on the case.
PRICES: Final[Mapping[str, tuple[Cost, str]]] = {
    LIMIT: ("nothing", ""),
    UTILIZATION: ("nothing", ""),
    CACHE_BYTES: ("nothing", ""),
    BATCH: ("speed", "vLLM reads prompts {:,} tokens at a time: slower first answers"),
    "max_num_seqs": ("speed", "at most {} requests run at once"),
    "max_cudagraph_capture_size": ("speed", "steps of more than {} tokens run without CUDA graphs"),
    "enforce_eager": (
        "speed",
        "no CUDA graphs and no compiled code: slower answers, quicker start",
    ),
    "max_model_len": ("requests", "prompt and answer have at most {:,} tokens together"),
    "kv_cache_dtype": ("quality", "the KV cache stores 8-bit values"),
    "mm_processor_kwargs": ("quality", ""),
    "tensor_parallel_size": ("hardware", "{} of these GPUs"),
}


@dataclass(frozen=True, slots=True)
class Remedy:
    """Engine arguments to change, and what that costs. A remedy replaces others of its `knob`."""

    knob: str
    changes: Mapping[str, Any] = field(hash=False)
    cost: Cost
    price: str


Remedies = tuple[Remedy, ...]


def set_value(name: str, value: Any, price: str = "", cost: Cost | None = None) -> Remedy:
    """Make a remedy that gives one engine argument this value, for its own price if given."""
    usual, words = PRICES[name]
    return Remedy(name, {name: value}, cost or usual, price or words.format(value))


@dataclass(frozen=True, slots=True)
class Proposal:
    """One remedy as users see it: `flags` and `changes` have whole new values."""

    flags: str
    changes: Mapping[str, Any]
    cost: Cost
    price: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of a configuration, with its rehearsal. `refusal`: vLLM's reason to reject it.
    `starts`: only room for its steps is lacking.
    """

    reached: bool
    lacking_bytes: int
    refusal: str = ""
    starts: bool = False
    memory: RehearsedMemory | None = field(default=None, compare=False)

    def is_better(self, than: Outcome) -> bool:
        """True if it reaches the goal, or is closer to it."""
        if self.refusal or than.reached or self.reached:
            return self.reached and not than.reached
        if self.starts != than.starts:
            return self.starts
        return self.lacking_bytes < than.lacking_bytes


def format_flags(changes: Mapping[str, Any]) -> str:
    """Write whole values of engine arguments as flags of `vllm serve`."""
    return " ".join(shlex.join(serve_option(*change)) for change in changes.items())


def changed_args(engine_args: Mapping[str, Any], remedies: Iterable[Remedy]) -> dict[str, Any]:
    """The engine arguments that the remedies change, with their new values."""
    args, touched = dict(engine_args), dict[str, None]()
    for remedy in remedies:
        args = merge_nested(args, remedy.changes)
        touched |= dict.fromkeys(remedy.changes)
    return {name: args[name] for name in touched}


def propose(whole: Mapping[str, Any], remedy: Remedy) -> Proposal:
    """Propose a remedy; its arguments are in `whole` with their new values."""
    changes = {name: whole[name] for name in remedy.changes}
    return Proposal(format_flags(changes), changes, remedy.cost, remedy.price)


def with_remedy(remedies: Remedies, more: Remedy) -> Remedies:
    """Add a remedy in place of those of its knob, or of an argument that it sets."""
    replaced = {more.knob, *(name for name in more.changes if name != LIMIT)}
    return (*(one for one in remedies if one.knob not in replaced), more)


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
        figure = memory.max_concurrency if self.kind == "concurrency" else memory.kv_cache_tokens
        return figure >= self.at_least

    def lacking_bytes(self, memory: RehearsedMemory) -> int:
        """KV cache missing for the goal, 0 if reached; too much if some layers keep a window."""
        if self.is_reached(memory):
            return 0
        context = memory.budget.max_model_len if memory.budget else 0
        tokens = max(context, self.at_least * (context if self.kind == "concurrency" else 1))
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


# A remedy lowers these; the others it changes completely or not.
_LEAST: Final = ("max_model_len", "max_num_seqs", BATCH)
# The least value of each argument that users keep; None if it may not change.
Kept = Mapping[str, int | None]
NOTHING_KEPT: Final[Kept] = MappingProxyType({})


def allows(kept: Kept, remedy: Remedy) -> bool:
    """True if the remedy changes nothing that users keep, or only down to its least."""
    pairs = ((kept[name], value) for name, value in remedy.changes.items() if name in kept)
    return all(least is not None and isinstance(v, int) and v >= least for least, v in pairs)


def parse_kept(texts: Iterable[str]) -> Kept:
    """Parse `max_model_len=32k` or `kv_cache_dtype`, as flags or arguments. Raises UsageError."""
    kept = dict[str, int | None]()
    for text in texts:
        name, equals, value = (part.strip() for part in text.partition("="))
        name = name.lstrip("-").replace("-", "_")
        if name not in PRICES:
            hint = "one of " + ", ".join(PRICES)
            raise UsageError(f"--keep {text!r}: no fix changes {flag(name)}", hint=hint)
        least = parse_count(value)
        if equals and (name not in _LEAST or not least):
            hint = f"--keep {name}" + (", or --keep max_model_len=32k" if name in _LEAST else "")
            raise UsageError(f"--keep {text!r}: invalid value for {name}", hint=hint)
        kept[name] = int(least) if least else None
    return kept


# What rehearsals promised too much of (a published start had 793 blocks, rehearsed 826 and 830).
_ROUNDED: Final = 0.97
# Contexts that mmcalib proposes are whole thousands.
_CONTEXT_STEP: Final = 1_024
_MODEL_LENS: Final = (131_072, 65_536, 32_768, 16_384, 8_192, 4_096)
_GRAPH_SIZE: Final = 16
SEQUENCES: Final = (64, 16)
SIXTEEN_BITS: Final = ("auto", "bfloat16", "float16")
_RANKS: Final = (2, 4, 8)


def read_problem(rehearsed: RehearsedMemory) -> StartupLog:
    """Read the figures that vLLM's error states; its sequences and context safely below them."""
    said = last_failed(read_starts([rehearsed.problem]))
    most, longest = said.most_sequences, int((said.longest_context or 0) * _ROUNDED)
    seqs = max(1, min(most - 1, int(most * _ROUNDED))) if most else None
    return replace(said, most_sequences=seqs, longest_context=round_context(longest))


def round_context(tokens: int) -> int | None:
    """Round a context down to whole thousands, if it has any; None for nothing."""
    return tokens // _CONTEXT_STEP * _CONTEXT_STEP or tokens or None


@dataclass(frozen=True, slots=True)
class Situation:
    """A configuration as it is, with the remedies so far: what decides the next ones."""

    engine_args: Mapping[str, Any]
    memory: RehearsedMemory
    budget: Budget
    goal: Goal
    lacking_bytes: int = 0
    knobs: tuple[Knob, ...] = ()
    kept: Kept = field(default_factory=dict)

    def clip(self, name: str, values: Iterable[int]) -> list[int]:
        """The values that the argument may take, descending, with its least."""
        return sorted({max(value, self.kept.get(name) or 0) for value in values}, reverse=True)


Lever = Callable[[Situation], Iterator[Remedy]]


def unlisted(modality: str, lists: bool, what: str = "vLLM reserves for it") -> Remedy:
    """Make the remedy that turns off a modality, where a limit `lists` others or none does."""
    why = f"nothing here lists {modality}" if lists else f"if nobody sends {modality}"
    return Remedy(f"limit {modality}", {LIMIT: {modality: 0}}, "nothing", f"{why}; {what}")


def _modalities(now: Situation) -> Iterator[Remedy]:
    """A limit above 0 means that the modality is served; without one, the main modality is."""
    served = now.budget.max_tokens_per_item
    main = "image" if "image" in served else next(iter(served), "")
    limits = now.engine_args.get(LIMIT) or {}
    listed = any(modality in limits for modality in served)
    for modality in served:
        if modality not in limits and (listed or modality != main):
            yield unlisted(modality, listed)


def drop_hints(engine_args: Mapping[str, Any]) -> Iterator[Remedy]:
    """Drop size hints: most shrink vLLM's profile, but not the items that it admits."""
    limits = engine_args.get(LIMIT) or {}
    hints = {m: count for m, count in plain_counts(limits).items() if size_hint(limits, m)}
    if hints:
        price = f"vLLM's profile reserves for the largest {' and '.join(hints)} that it admits"
        yield Remedy("no size hint", {LIMIT: hints}, "KV cache", price)


def _utilization(now: Situation) -> Iterator[Remedy]:
    """The least share of the GPU that suffices, with 0.01 for errors of rehearsals, then the most;
    or the most that starts. vLLM's own slack stays free; a KV cache of a set size needs no share.
    """
    memory = now.memory
    share = now.engine_args.get(UTILIZATION, memory.division.utilization)
    free = memory.requested_bytes + memory.outside_bytes - min(0, memory.kv_cache_bytes)
    room = free - memory.needed_outside_bytes - VLLM_SLACK_BYTES
    most = min(memory.proposed_utilization, floor_utilization(room, memory.total_bytes))
    enough = math.ceil(100 * (memory.requested_bytes + now.lacking_bytes) / memory.total_bytes + 1)
    for value in sorted({min(most, enough / 100), most}):
        left = gib(max(0, free - round(value * memory.total_bytes)))
        if value > share and not now.engine_args.get(CACHE_BYTES):
            price = f"if nothing else starts on the GPU: {left} stay free"
            yield set_value(UTILIZATION, value, price)
        elif 0 < value < share and memory.most_utilization < share:
            price = f"the most that starts next to the other processes: {left} stay free"
            yield set_value(UTILIZATION, value, price, "KV cache")


def _batched_tokens(now: Situation) -> Iterator[Remedy]:
    """The most that may suffice, then vLLM's default on smaller GPUs, or half of that."""
    batch, usual = now.budget.max_num_batched_tokens, SMALL_GPU_BATCHED_TOKENS
    least = usual if usual < batch else usual // 2
    fitting = int(batch * (1 - now.lacking_bytes / max(1, now.memory.activation_peak_bytes)))
    most = 1 << max(1, fitting).bit_length() - 1
    for tokens in now.clip(BATCH, (max(most, least), least)):
        if (needed := max(tokens, now.budget.max_num_seqs)) < batch:
            yield set_value(BATCH, needed)


def _seqs(now: Situation) -> Iterator[Remedy]:
    least = now.goal.at_least if now.goal.kind == "concurrency" else 1
    most = read_problem(now.memory).most_sequences
    for count in now.clip("max_num_seqs", (*SEQUENCES, most or SEQUENCES[0])):
        if least <= count < now.budget.max_num_seqs:
            yield set_value("max_num_seqs", count)


def _graphs(now: Situation) -> Iterator[Remedy]:
    if now.engine_args.get("enforce_eager"):
        return
    fewer = set_value("max_cudagraph_capture_size", _GRAPH_SIZE)
    if not now.engine_args.keys() & {"cudagraph_capture_sizes", "compilation_config"}:
        yield replace(fewer, knob="cuda graphs")
    yield replace(set_value("enforce_eager", True), knob="cuda graphs")


def _context(now: Situation) -> Iterator[Remedy]:
    """The longest that may suffice; an item and its answer fit. Videos follow the context."""
    items = {m: n for m, n in now.budget.max_tokens_per_item.items() if m != "video"}
    least = max(items.values(), default=0) + TEXT_RESERVE_TOKENS
    longest = read_problem(now.memory).longest_context
    if now.goal.kind == "concurrency" and now.memory.kv_cache_tokens:
        longest = round_context(int(_ROUNDED * now.memory.kv_cache_tokens / now.goal.at_least))
    for tokens in now.clip("max_model_len", [longest] if longest else _MODEL_LENS):
        if least <= tokens < now.budget.max_model_len:
            yield set_value("max_model_len", tokens)


def _eight_bits(now: Situation) -> Iterator[Remedy]:
    if str(now.engine_args.get("kv_cache_dtype", "auto")) in SIXTEEN_BITS:
        yield set_value("kv_cache_dtype", "fp8")


def _caps(now: Situation) -> Iterator[Remedy]:
    for knob in now.knobs:
        if knob.modality in now.budget.max_tokens_per_item:
            given: Any = now.engine_args
            for key in knob.key_path():
                given = given.get(key) if isinstance(given, Mapping) else None
            before = given if isinstance(given, int | float) else knob.value
            for value, price in knob.reductions():
                if value < before:
                    yield Remedy(knob.name, {knob.argument: knob.kwargs(value)}, "quality", price)


def _ranks(now: Situation) -> Iterator[Remedy]:
    for ranks in _RANKS:
        if ranks > now.memory.tensor_parallel_size:
            yield set_value("tensor_parallel_size", ranks)


# The order in which `plan` and `run` spend what users have, see `COSTS`; a group has one cost.
LEVERS: Final[tuple[tuple[Lever, ...], ...]] = (
    *((_modalities, _utilization), (_batched_tokens, _seqs, _graphs)),
    *((_context,), (_eight_bits,), (_caps,)),
)
# Smaller items fit in shorter contexts.
LAST_LEVERS: Final[tuple[Lever, ...]] = (_context, _ranks)


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The remedies found, their outcome, and all that was tried. `proven`: the search ended."""

    best: Remedies
    outcome: Outcome
    proven: bool
    tried: tuple[tuple[Remedies, Outcome], ...] = ()


# Of what is left when the evaluations are used up.
_UNTRIED: Final = Outcome(False, 0, "not tried")


@dataclass(slots=True)
class Search:
    """Finds the least remedies by `evaluate`, with at most `most` evaluations.

    `look` describes a configuration for the levers, None without figures. `reserving` are remedies
    of one that starts but whose steps lack room.
    """

    evaluate: Callable[[Remedies], Outcome]
    look: Callable[[Remedies, Outcome], Situation | None]
    reserving: Callable[[Remedies], Iterable[Remedy]]
    most: int
    tried: dict[Remedies, Outcome] = field(default_factory=dict)
    spent: bool = False

    def run(self, base: Outcome) -> SearchResult:
        """Follow the levers from `base`: first each group after the free ones by itself, so that
        nothing is paid that does not suffice; then all together, with hardware last.
        """
        self.tried[()] = base
        chosen = self._reserve(())
        for number, group in enumerate((*LEVERS, sum(LEVERS, ()) + LAST_LEVERS)):
            before = chosen
            for lever in group:
                chosen = self._pull(lever, chosen)
            if self.tried[chosen].reached:
                chosen = self._drop_unneeded(chosen)
                break
            chosen = before if 0 < number < len(LEVERS) else chosen
        tried = tuple((remedies, outcome) for remedies, outcome in self.tried.items() if remedies)
        return SearchResult(chosen, self.tried[chosen], not self.spent, tried)

    def _pull(self, lever: Lever, chosen: Remedies) -> Remedies:
        """Add the lever's remedy that reaches the goal, or the last one that helps."""
        situation = None if self.tried[chosen].reached else self.look(chosen, self.tried[chosen])
        for remedy in lever(situation) if situation else ():
            if self.tried[chosen].reached:
                break
            if situation and allows(situation.kept, remedy):
                more = with_remedy(chosen, remedy)
                if self._try(more).is_better(self.tried[chosen]):
                    chosen = self._reserve(more)
        return chosen

    def _reserve(self, chosen: Remedies) -> Remedies:
        """Add what makes room for the steps of a configuration that starts, if anything does."""
        for remedy in self.reserving(chosen) if self.tried[chosen].starts else ():
            reserved = with_remedy(chosen, remedy)
            if self._try(reserved).reached:
                return reserved
        return chosen

    def _drop_unneeded(self, chosen: Remedies) -> Remedies:
        """Leave out what the goal does not need, the dearest first."""
        for remedy in sorted(chosen, key=lambda one: COSTS.index(one.cost), reverse=True):
            fewer = tuple(one for one in chosen if one != remedy)
            if fewer and remedy != chosen[-1] and self._try(fewer).reached:
                chosen = fewer
        return chosen

    def _try(self, remedies: Remedies) -> Outcome:
        if remedies not in self.tried and len(self.tried) < self.most:
            self.tried[remedies] = self.evaluate(remedies)
        self.spent |= remedies not in self.tried
        return self.tried.get(remedies, _UNTRIED)
