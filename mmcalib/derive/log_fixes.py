"""What a server's log answers by itself: the failure, its figures, and fixes that are arithmetic.

Nothing here knows the model or runs vLLM: each figure is the log's, and each fix is computed from
them. A fix never goes beyond a number that the log states.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from mmcalib.derive.fixes import (
    MOST_UTILIZATION,
    SIXTEEN_BITS,
    UTILIZATION,
    Constraints,
    Fix,
    changed_args,
    format_flags,
    round_context,
    unlisted,
)
from mmcalib.derive.logs import Phase, StartupLog
from mmcalib.derive.policy import Cost
from mmcalib.domain.memory import floor_utilization
from mmcalib.releases.constants import GPU_MEMORY_UTILIZATION, VLLM_SLACK_BYTES
from mmcalib.text import flag, gib


@dataclass(frozen=True, slots=True)
class LoggedStart:
    """One start of a server in the log, which `line` picks."""

    line: int
    model: str
    port: int | None
    outcome: str

    def __str__(self) -> str:
        port = f", port {self.port}" if self.port else ""
        return f"line {self.line}: {self.model or 'no model named'}{port}, {self.outcome}"


@dataclass(frozen=True, slots=True)
class ComputedFix:
    """A fix whose effect is arithmetic on the log's figures."""

    flags: str
    changes: Mapping[str, Any]
    cost: Cost
    price: str


@dataclass(frozen=True, slots=True)
class LogAnswer:
    """The answer from one start of the log alone; `figures` as stated, by name with their unit.

    `missing_bytes` are what the failure lacked, as far as the log says. Without `fixes`, `least` is
    the least that would serve.
    """

    line: int
    starts: tuple[LoggedStart, ...]
    vllm: str
    model: str
    platform: str
    phase: Phase | None
    failures: tuple[str, ...]
    missing_bytes: int | None
    figures: Mapping[str, float]
    fixes: tuple[ComputedFix, ...]
    least: str
    notes: tuple[str, ...] = ()


_NAMES: Final = (
    *("total_bytes", "free_bytes", UTILIZATION, "requested_bytes", "weights_bytes"),
    *("consumed_bytes", "non_torch_bytes", "activation_bytes", "graphs_bytes", "kv_cache_bytes"),
    *("needed_bytes", "kv_cache_tokens", "max_model_len", "max_num_batched_tokens"),
    "encoder_budget_tokens",
)
# The default share of releases before 0.20.
_OLD_UTILIZATION: Final = 0.9
# vLLM's steps are multiples of this.
_STEP: Final = 256


@dataclass(frozen=True, slots=True)
class _Measured:
    """A start's figures, and what follows from them; `total_bytes` are the GPU's, if known."""

    log: StartupLog
    total_bytes: int | None

    def setting(self, name: str) -> Any:
        """The value that the engine printed, or that the user set."""
        printed = getattr(self.log, name, None)
        return self.log.engine_args.get(name) if printed is None else printed

    @property
    def utilization(self) -> float:
        given = self.setting(UTILIZATION)
        if isinstance(given, int | float) and not isinstance(given, bool):
            return float(given)
        release = (self.log.vllm_version or "").split(".")
        old = release[0] == "0" and release[1:2] != [] and release[1].isdigit()
        return _OLD_UTILIZATION if old and int(release[1]) < 20 else GPU_MEMORY_UTILIZATION

    @property
    def requested_bytes(self) -> int | None:
        if self.log.wanted_bytes is not None:
            return self.log.wanted_bytes
        return None if self.total_bytes is None else round(self.utilization * self.total_bytes)

    @property
    def phase(self) -> Phase | None:
        return self.log.failures[-1].phase if self.log.failures else None

    @property
    def lacks_cache(self) -> bool:
        """True if the KV cache was too small for one request."""
        return self.phase == "kv cache" and self.log.kv_cache_bytes is not None

    @property
    def has_cache(self) -> bool:
        """True if the failure came with the KV cache in place, which a lower share shrinks."""
        if self.phase == "profile: sampler":
            return self.log.warmed_sequences is not None
        return self.phase in ("cuda graphs", "warm-up", "serving", "serving: encoder")

    @property
    def oom_bytes(self) -> int | None:
        """Bytes that the allocation lacked; None without an out-of-memory error with figures."""
        pairs = ((o.oom.tried_bytes, o.oom.free_bytes) for o in self.log.failures if o.oom)
        lacking = [max(0, tried - free) for tried, free in pairs if tried and free is not None]
        return max(lacking, default=None)

    @property
    def missing_bytes(self) -> int | None:
        log = self.log
        if self.lacks_cache and log.kv_cache_bytes is not None:
            return (log.needed_bytes or 0) - log.kv_cache_bytes
        if self.phase == "start" and log.wanted_bytes and log.free_bytes is not None:
            return max(0, log.wanted_bytes - log.free_bytes)
        return self.oom_bytes

    def limits(self) -> Mapping[str, Any]:
        limits = self.log.engine_args.get("limit_mm_per_prompt")
        return {str(k): v for k, v in limits.items()} if isinstance(limits, dict) else {}


def answer_log(
    starts: Sequence[StartupLog],
    log: StartupLog,
    total_bytes: int | None = None,
    kept: Constraints | None = None,
) -> LogAnswer:
    """Answer from one of the starts; `total_bytes` are the GPU's if the log does not state them."""
    known = _Measured(log, log.total_bytes or total_bytes)
    kept = kept or Constraints()
    fixes = [fix for propose in _FIXES for fix in propose(known)] if log.failures else []
    values = {name: known.setting(name) for name in _NAMES}
    values |= {"total_bytes": known.total_bytes, "requested_bytes": known.requested_bytes}
    values |= {UTILIZATION: known.utilization}
    return LogAnswer(
        line=log.line,
        starts=tuple(LoggedStart(o.line, o.model or "", o.port, o.outcome) for o in starts),
        vllm=log.vllm_version or "",
        model=log.model or "",
        platform=log.platform or "",
        phase=known.phase,
        failures=tuple(dict.fromkeys(one.text for one in log.failures)),
        missing_bytes=known.missing_bytes,
        figures={name: v for name, v in values.items() if isinstance(v, int | float)},
        fixes=tuple(_computed(known, fix) for fix in fixes if kept.allows(fix)),
        least=_least(known) if log.failures else "",
        notes=tuple(_notes(known)),
    )


def _computed(known: _Measured, fix: Fix) -> ComputedFix:
    changes = changed_args(known.log.engine_args, (fix,))
    return ComputedFix(format_flags(changes), changes, fix.cost, fix.price)


def _modality(known: _Measured) -> Iterator[Fix]:
    """Turn off the modality that the profile reserved for, if nobody listed it."""
    log, modality = known.log, known.log.profiled_modality
    before = known.phase is None or not known.phase.startswith(("serving", "start", "weights"))
    if modality and before and modality != "image" and modality not in known.limits():
        tokens = f" of {log.encoder_budget_tokens:,} tokens" if log.encoder_budget_tokens else ""
        what = f"the profile reserved for {log.profiled_items} {modality}{tokens}"
        yield unlisted(modality, log.engine_args, what)


def _utilization(known: _Measured) -> Iterator[Fix]:
    """Ask for what is free: more for the KV cache, less where something else ran out of memory."""
    log, total, requested = known.log, known.total_bytes, known.requested_bytes
    missing = known.missing_bytes
    if total is None or requested is None or missing is None:
        return
    free = floor_utilization(log.free_bytes, total) if log.free_bytes else None
    if known.phase == "start":
        if free:
            price = f"{gib(requested - round(free * total))} less: the most that was free"
            yield Fix(UTILIZATION, {UTILIZATION: free}, "KV cache", price)
    elif known.lacks_cache:
        share = math.ceil(100 * (requested + max(missing, 1)) / total) / 100
        most = MOST_UTILIZATION if free is None else free
        if share <= most:
            # Without the need of a request, only the most is sure to be no less.
            share = share if log.needed_bytes else most
            cache = gib((log.kv_cache_bytes or 0) + round(share * total) - requested)
            whose = "free at the start" if free else "free, if nothing else uses the GPU"
            price = f"a KV cache of {cache}, from memory that is {whose}"
            yield Fix(UTILIZATION, {UTILIZATION: share}, "nothing", price)
    elif known.has_cache:
        yield from _lower_utilization(known, requested, total, missing)


def _lower_utilization(known: _Measured, requested: int, total: int, missing: int) -> Iterator[Fix]:
    share = floor_utilization(requested - missing - VLLM_SLACK_BYTES, total)
    less = requested - round(share * total)
    left = None if known.log.kv_cache_bytes is None else known.log.kv_cache_bytes - less
    if share > 0 and (left is None or left > (known.log.needed_bytes or 0)):
        cache = "" if left is None else f", {gib(left)} remain"
        price = f"{gib(less)} less for the KV cache{cache}: such a step needs them"
        yield Fix(UTILIZATION, {UTILIZATION: share}, "KV cache", price)


def _batch(known: _Measured) -> Iterator[Fix]:
    """Take the batch that the error names, or shrink the step whose peak and size are stated."""
    log, name = known.log, "max_num_batched_tokens"
    batch, peak = known.setting(name), log.activation_bytes
    if (least := log.least_batched_tokens) is not None:
        price = f"vLLM reserves for steps of {least:,} tokens, the least that the error allows"
        yield Fix(name, {name: least}, "KV cache", price)
        return
    room = None if peak is None or known.missing_bytes is None else peak - known.missing_bytes
    oom = next((one.oom for one in log.failures if one.oom), None)
    if known.phase in ("profile", "profile: language model") and oom and log.weights_bytes:
        if oom.allocated_bytes and oom.tried_bytes and oom.free_bytes is not None:
            held = oom.allocated_bytes - log.weights_bytes
            peak, room = held + oom.tried_bytes, held + oom.free_bytes - VLLM_SLACK_BYTES
    elif not known.lacks_cache:
        return
    # Otherwise the encoder's step sets the peak.
    language = log.encoder_budget_tokens in (None, batch)
    if isinstance(batch, int) and language and peak and room is not None:
        fewer = int(batch * room / peak) // _STEP * _STEP
        if 0 < fewer < batch:
            price = f"vLLM reads prompts {fewer:,} tokens at a time: slower first answers"
            yield Fix(name, {name: fewer}, "speed", price)


def _sequences(known: _Measured) -> Iterator[Fix]:
    """Take the number that vLLM names, or half of what had room in its warm-up."""
    log, name = known.log, "max_num_seqs"
    count, why = log.most_sequences, "the log's server has a block for each"
    oom = next((one.oom for one in log.failures if one.oom and one.oom.tried_bytes), None)
    if count is None and log.warmed_sequences and oom and oom.tried_bytes and oom.free_bytes:
        fitting = min(1, oom.free_bytes / oom.tried_bytes) * log.warmed_sequences / 2
        count, why = 2 ** int(math.log2(max(1, fitting))), "the warm-up runs as many"
    if count:
        yield Fix(name, {name: count}, "speed", f"at most {count} requests run at once: {why}")


def _context(known: _Measured) -> Iterator[Fix]:
    """Take the longest context that vLLM names, or that the stated bytes have room for."""
    log = known.log
    if known.phase == "start":
        tokens = log.longest_context
    else:
        tokens = round_context(log.longest_context or _proportional(known))
    if tokens:
        price = f"prompt and answer have at most {tokens:,} tokens together"
        yield Fix("max_model_len", {"max_model_len": tokens}, "requests", price)


def _proportional(known: _Measured) -> int:
    cache, needed = known.log.kv_cache_bytes or 0, known.log.needed_bytes
    length = known.setting("max_model_len")
    if not known.lacks_cache or not needed or cache <= 0 or not isinstance(length, int):
        return 0
    return int(length * min(1, cache / needed) * 0.97)


def _eight_bits(known: _Measured) -> Iterator[Fix]:
    name, now = "kv_cache_dtype", known.log.engine_args.get("kv_cache_dtype", "auto")
    cache, needed = known.log.kv_cache_bytes, known.log.needed_bytes
    if str(now) in SIXTEEN_BITS and cache and needed and needed / 2 <= cache:
        price = f"8-bit values: one request takes {gib(needed // 2)}, and {gib(cache)} are there"
        yield Fix(name, {name: "fp8"}, "quality", price)


# In the order of levers.
_FIXES: Final[tuple[Callable[[_Measured], Iterator[Fix]], ...]] = (
    *(_modality, _utilization, _batch, _sequences, _context, _eight_bits),
)


def _least(known: _Measured) -> str:
    """Name the least that would serve where the card is too small for the model, else nothing."""
    total, requested, missing = known.total_bytes, known.requested_bytes, known.missing_bytes
    weights = known.log.weights_bytes or 0
    if known.phase == "weights" and total is not None:
        return f"a card with more than {gib(total)}, several GPUs, or a quantized checkpoint"
    if not known.lacks_cache or total is None or requested is None or missing is None:
        return ""
    whole = round((requested + missing) / GPU_MEMORY_UTILIZATION)
    if whole <= total * MOST_UTILIZATION / GPU_MEMORY_UTILIZATION:
        return ""
    of = f", of which {gib(weights)} are weights: a quantized checkpoint takes fewer" * (
        weights > 0
    )
    return f"a card with about {gib(whole)}{of}, or {flag('tensor_parallel_size')} 2"


def _notes(known: _Measured) -> Iterator[str]:
    if any("killed by signal" in one.text for one in known.log.failures):
        yield "the host's memory ran out, not the GPU's: fewer frames, or --mm-processor-cache-gb 0"
    if known.log.unread_args:
        yield f"arguments of the log that are cut short: {', '.join(known.log.unread_args)}"
