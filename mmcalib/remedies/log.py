"""What a server's log answers by itself: failure, figures, and remedies that are arithmetic.

Nothing here knows the model or runs vLLM: each figure is the log's, and each remedy is computed
from them. A remedy never goes beyond a number that the log states.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from mmcalib.domain.memory import Division, floor_utilization
from mmcalib.limits.policy import TEXT_RESERVE_TOKENS
from mmcalib.limits.values import LIMIT
from mmcalib.logs.starts import DIED, OutOfMemory, Phase, StartupLog
from mmcalib.releases.constants import VLLM_SLACK_BYTES, divide
from mmcalib.remedies import memory as r
from mmcalib.text import GIB, flag, gib


@dataclass(frozen=True, slots=True)
class LogAnswer:
    """The answer from one start of the log alone; `figures` as stated, by name with their unit.

    `missing_bytes` are what the failure lacked, as far as the log says. Without `fixes`, `least` is
    the least that would serve, or where to look. `others` describes the log's other
    starts, and `ending` the end of a start without a failure.
    """

    line: int
    start: str
    others: tuple[str, ...]
    vllm: str
    model: str
    platform: str
    phase: Phase | None
    failures: tuple[str, ...]
    missing_bytes: int | None
    figures: Mapping[str, float]
    fixes: tuple[r.Proposal, ...]
    least: str
    notes: tuple[str, ...] = ()
    ending: str = ""


# A log's figures, and what they are called.
FIGURES: Final = {
    "total_bytes": "GPU",
    "free_bytes": "free at the start",
    "others_bytes": "other processes",
    "gpu_memory_utilization": "utilization",
    "requested_bytes": "share of vLLM",
    "weights_bytes": "weights",
    "consumed_bytes": "weights and non-torch",
    "non_torch_bytes": "non-torch",
    "activation_bytes": "activation peak",
    "graphs_bytes": "CUDA graphs",
    "kv_cache_bytes": "KV cache",
    "other_kv_cache_bytes": "another rank's",
    "needed_bytes": "one request needs",
    "kv_cache_tokens": "KV cache, tokens",
    "max_model_len": "context, tokens",
    "max_num_batched_tokens": "batch, tokens",
    "encoder_budget_tokens": "encoder budget, tokens",
}
# vLLM's steps are multiples of this.
_STEP: Final = 256
# With less than this part of the memory that a server asked for, it is not worth a new start.
_LEAST_PART: Final = 1 / 2
# Logs round to 0.01 GiB.
ROUNDING_BYTES: Final = GIB // 100


@dataclass(frozen=True, slots=True)
class _Measured:
    """A start's figures, and what follows from them.

    `settings` are those that the engine printed, or else that the user set; `total_bytes` are the
    GPU's, if known. `lacks_cache`: the KV cache was too small for one request.
    """

    log: StartupLog
    division: Division
    settings: Mapping[str, Any]
    total_bytes: int | None
    requested_bytes: int | None
    phase: Phase | None
    lacks_cache: bool
    oom: OutOfMemory | None
    missing_bytes: int | None

    @property
    def states_share(self) -> bool:
        """Check whether the log tells vLLM's share; otherwise it is the release's default."""
        return r.UTILIZATION in self.settings or self.log.wanted_bytes is not None

    @property
    def has_kv_cache(self) -> bool:
        """Check whether the KV cache was in place, so that a smaller one frees memory."""
        sampled = self.log.warmed_sequences or self.log.kv_cache_tokens
        is_early = self.phase is None or (self.phase == "profile: sampler" and not sampled)
        return not is_early and not self.division.is_before_kv_cache(self.phase)

    @property
    def fills_share(self) -> bool:
        """Check whether the weights alone take vLLM's share: no smaller step leaves a KV cache."""
        return (self.log.weights_bytes or 0) >= (self.requested_bytes or math.inf)

    @property
    def least_context(self) -> int:
        """Tokens of the largest item with its answer; 0 if unknown, or if the context sets them."""
        budget, batch = self.log.encoder_budget_tokens or 0, self.settings.get(r.BATCH)
        if isinstance(batch, int) and budget > batch and self.log.profiled_modality != "video":
            return budget + TEXT_RESERVE_TOKENS
        return 0

    @property
    def held_bytes(self) -> int:
        """What other processes hold if they leave too little for a start; else 0."""
        total, free = self.total_bytes, self.log.free_bytes
        if self.phase != "start" or total is None or free is None:
            return 0
        return total - free if free < _LEAST_PART * (self.requested_bytes or 0) else 0


def _measure(log: StartupLog, total: int | None) -> _Measured:
    division = divide(log.vllm_version or "", log.engine_args)
    printed = {name: getattr(log, name, None) for name in FIGURES}
    settings = {**log.engine_args, **{n: v for n, v in printed.items() if v is not None}}
    share = settings.get(r.UTILIZATION)
    if not isinstance(share, int | float) or isinstance(share, bool):
        settings.pop(r.UTILIZATION, None)
        share = division.utilization
    requested = log.wanted_bytes
    states_release = log.vllm_version or r.UTILIZATION in settings
    if requested is None and total and states_release and not settings.get(r.CACHE_BYTES):
        requested = round(share * total)
    phase = log.failures[-1].phase if log.failures else None
    is_cache = phase == "kv cache" and log.failures[-1].oom is None
    lacks_cache = is_cache and log.kv_cache_bytes is not None
    ooms = [one.oom for one in log.failures if one.oom]
    pairs = ((oom.tried_bytes, oom.free_bytes) for oom in ooms)
    lacking = [max(0, tried - free) for tried, free in pairs if tried and free is not None]
    missing = max(lacking, default=None)
    if lacks_cache:
        # Without the need of a request, only what a negative figure lacks is known.
        missing = (log.needed_bytes or 0) - (log.kv_cache_bytes or 0)
        missing = missing if missing >= 0 else None
    elif phase == "start" and log.wanted_bytes and log.free_bytes is not None:
        missing = max(0, log.wanted_bytes - log.free_bytes)
    oom = next((one for one in ooms if one.tried_bytes), None)
    settings |= {"others_bytes": oom.others_bytes} if oom and oom.others_bytes else {}
    return _Measured(log, division, settings, total, requested, phase, lacks_cache, oom, missing)


def answer_log(
    starts: Sequence[StartupLog],
    log: StartupLog,
    total_bytes: int | None = None,
    kept: r.Kept = r.NOTHING_KEPT,
) -> LogAnswer:
    """Answer from one of the starts; `total_bytes` are the GPU's if the log does not state them."""
    known = _measure(log, log.total_bytes or total_bytes)
    levers = _LEVERS if log.failures and not log.failures[-1].is_other else ()
    found = (one for lever in levers for one in lever(known) if r.allows(kept, one))
    requested = known.requested_bytes if known.states_share else None
    more = {"total_bytes": known.total_bytes, "requested_bytes": requested}
    values = {name: known.settings.get(name) for name in FIGURES} | more
    return LogAnswer(
        line=log.line,
        start=str(log),
        others=tuple(str(one) for one in starts if one != log),
        vllm=log.vllm_version or "",
        model=log.model or "",
        platform=log.platform or "",
        phase=known.phase,
        failures=tuple(dict.fromkeys(one.text for one in log.failures)),
        missing_bytes=known.missing_bytes,
        figures={name: v for name, v in values.items() if isinstance(v, int | float)},
        fixes=tuple(r.propose(r.changed_args(log.engine_args, [one]), one) for one in found),
        least=_least(known),
        notes=tuple(_notes(known)),
        ending="" if log.failures else _ending(log),
    )


def _modality(known: _Measured) -> Iterator[r.Remedy]:
    """Turn off the modality that the profile reserved for, if nobody listed it."""
    log, modality = known.log, known.log.profiled_modality
    limits = log.engine_args.get(LIMIT)
    listed = modality in (None, "image", *(limits if isinstance(limits, dict) else ()))
    # In vain if weights fill vLLM's share, or if a larger KV cache takes what the profile leaves.
    in_vain = known.fills_share or (known.oom and log.kv_cache_tokens)
    in_vain = in_vain or str(known.phase).startswith(("serving", "start", "weights"))
    if modality and not listed and not in_vain:
        tokens = f" of {log.encoder_budget_tokens:,} tokens" if log.encoder_budget_tokens else ""
        what = f"the profile reserved for {log.profiled_items} {modality}{tokens}"
        yield r.unlisted(modality, bool(limits), what)


def _utilization(known: _Measured) -> Iterator[r.Remedy]:
    """Ask for what is free: more for the KV cache, less where something else ran out of memory."""
    log, total, requested = known.log, known.total_bytes, known.requested_bytes
    missing, cache = known.missing_bytes, log.kv_cache_bytes
    if total is None or requested is None or missing is None:
        return
    free = floor_utilization(log.free_bytes, total) if log.free_bytes else None
    if known.phase == "start" and free and not known.held_bytes:
        held = round(free * total)
        price = f"{gib(requested - held)} less: all of vLLM in the {gib(held)} that were free"
        yield r.set_value(r.UTILIZATION, free, price, "KV cache")
    elif known.lacks_cache:
        share = math.ceil(100 * (requested + max(missing, 1)) / total) / 100
        most = known.division.most_utilization if free is None else free
        if share <= most:
            # Without the need of a request, only the most is sure to be no less.
            share = share if log.needed_bytes else most
            more = gib((cache or 0) + round(share * total) - requested)
            whose = "free at the start" if free else "free, if nothing else uses the GPU"
            price = f"a KV cache of {more}, from memory that is {whose}"
            yield r.set_value(r.UTILIZATION, share, price)
    elif known.has_kv_cache:
        share = floor_utilization(requested - missing - VLLM_SLACK_BYTES, total)
        less = requested - round(share * total)
        if share > 0 and (cache is None or cache - less > (log.needed_bytes or 0)):
            left = "" if cache is None else f" ({gib(cache - less)} remain)"
            price = f"{gib(less)} less for the KV cache{left}: such a step needs them"
            yield r.set_value(r.UTILIZATION, share, price, "KV cache")


def _cache_bytes(known: _Measured) -> Iterator[r.Remedy]:
    """Change a KV cache of given bytes, for which vLLM takes no utilization."""
    given, log, missing = known.settings.get(r.CACHE_BYTES), known.log, known.missing_bytes
    if not isinstance(given, int) or missing is None:
        return
    if known.lacks_cache:
        price = f"{gib(missing)} more for the KV cache, if they are free"
        yield r.set_value(r.CACHE_BYTES, given + missing + ROUNDING_BYTES, price)
    elif known.has_kv_cache:
        left = given - missing - VLLM_SLACK_BYTES
        if left > (log.needed_bytes or 0):
            price = f"{gib(given - left)} less for the KV cache ({gib(left)} remain): "
            yield r.set_value(r.CACHE_BYTES, left, f"{price}such a step needs them", "KV cache")


def _batch(known: _Measured) -> Iterator[r.Remedy]:
    """Take the batch that the error names, or shrink the step whose peak and size are stated. Of
    what a profile may take, half is for the KV cache, whose need it does not state.
    """
    log, name, oom, price = known.log, r.BATCH, known.oom, ""
    batch, peak, missing = known.settings.get(name), log.activation_bytes, known.missing_bytes
    if (least := log.least_batched_tokens) is not None:
        price = f"vLLM reserves for steps of {least:,} tokens, the least that the error allows"
        yield r.set_value(name, least, price, "KV cache")
    if least is not None or known.fills_share:
        return
    room = 0 if missing is None else (peak or 0) - missing
    if known.phase in ("profile", "profile: language model") and oom and log.weights_bytes:
        if oom.allocated_bytes and oom.tried_bytes and oom.free_bytes is not None:
            peak = oom.allocated_bytes + oom.tried_bytes - log.weights_bytes
            most = min(oom.allocated_bytes + oom.free_bytes, known.requested_bytes or math.inf)
            room = round(most - log.weights_bytes - VLLM_SLACK_BYTES) // 2
            price = f"its step takes up to {gib(room)}, and the KV cache gets as much"
    elif not known.lacks_cache:
        return
    # Otherwise the encoder's step sets the peak.
    if isinstance(batch, int) and log.encoder_budget_tokens in (None, batch) and peak:
        fewer = int(batch * room / peak) // _STEP * _STEP
        if 0 < fewer < batch:
            yield r.set_value(name, fewer, price)


def stated_remedies(log: StartupLog, kept: r.Kept = r.NOTHING_KEPT) -> r.Remedies:
    """Return the remedy that the log's own error names: a measured limit, which no plan exceeds."""
    found = [r.set_value("max_num_seqs", log.most_sequences)] if log.most_sequences else []
    return tuple(one for one in found if r.allows(kept, one))


def _sequences(known: _Measured) -> Iterator[r.Remedy]:
    """Take the number that vLLM names, or half of what had room in its warm-up."""
    log, oom = known.log, known.oom
    if stated := stated_remedies(log):
        yield from stated
    elif log.warmed_sequences and oom and oom.tried_bytes and oom.free_bytes:
        fitting = min(1, oom.free_bytes / oom.tried_bytes) * log.warmed_sequences / 2
        yield r.set_value("max_num_seqs", 2 ** int(math.log2(max(1, fitting))))


def _context(known: _Measured) -> Iterator[r.Remedy]:
    """Take the longest context that vLLM names, or that the stated bytes have room for."""
    log, tokens = known.log, known.log.longest_context
    cache, length = log.kv_cache_bytes or 0, known.settings.get("max_model_len")
    if known.phase != "start":
        if not tokens and known.lacks_cache and log.needed_bytes and isinstance(length, int):
            tokens = max(0, int(length * min(1, cache / log.needed_bytes) * 0.97))
        tokens = r.round_context(tokens or 0)
    if tokens and tokens >= known.least_context:
        yield r.set_value("max_model_len", tokens)


def _eight_bits(known: _Measured) -> Iterator[r.Remedy]:
    cache, needed = known.log.kv_cache_bytes, known.log.needed_bytes
    now = str(known.log.engine_args.get("kv_cache_dtype", "auto"))
    if now in r.SIXTEEN_BITS and cache and needed and needed / 2 <= cache:
        price = f"8-bit values: one request takes {gib(needed // 2)}, and {gib(cache)} are there"
        yield r.set_value("kv_cache_dtype", "fp8", price)


_LEVERS: Final = (_modality, _utilization, _cache_bytes, _batch, _sequences, _context, _eight_bits)


def _least(known: _Measured) -> str:
    """Name the least that would serve where the card is too small for the model, else nothing."""
    total, requested, missing = known.total_bytes, known.requested_bytes, known.missing_bytes
    if any(DIED.search(failure.text) for failure in known.log.failures):
        why = "the host's memory ran out, not the GPU's (then dmesg names it, and exit code is 137)"
        return f"see whether {why}: more of it, fewer frames, or --mm-processor-cache-gb 0"
    if any(failure.is_other for failure in known.log.failures):
        return "look at this error and what led to it; it is not about GPU memory or limits"
    if known.held_bytes:
        return f"another process holds {gib(known.held_bytes)} of that GPU: stop it"
    if known.oom and total is not None and (known.phase == "weights" or known.fills_share):
        return f"a card with more than {gib(total)}, several GPUs, or a quantized checkpoint"
    if not known.lacks_cache or total is None or requested is None or missing is None:
        return ""
    of, least, length = "", known.least_context, known.settings.get("max_model_len")
    if known.log.needed_bytes and least and isinstance(length, int) and least < length:
        missing -= round(known.log.needed_bytes * (1 - least / length))
        of = f" for {least:,} tokens of context, the largest item with its answer"
    whole = round((requested + missing) / known.division.utilization)
    if whole <= total * known.division.most_utilization / known.division.utilization:
        return ""
    if weights := known.log.weights_bytes:
        of += f", of which {gib(weights)} are weights: a quantized checkpoint takes fewer"
    # Without the need of a request, the card's KV cache would be empty.
    size = f"{'about' if known.log.needed_bytes else 'more than'} {gib(whole)}"
    other = f"a card with {size}{of}, or {flag('tensor_parallel_size')} 2"
    shorter = f"a shorter {flag('max_model_len')}, which shortens the video that vLLM profiles"
    return f"{shorter}; or {other}" if known.log.profiled_modality == "video" else other


def _ending(log: StartupLog) -> str:
    if log.is_ready:
        request = "if a request did: --log FILE with the lines of its error"
        request = f"a request did: {log.refused}" if log.refused else request
        return f"this start did not fail; {request}"
    phase = f" ({log.phase})" if log.phase else ""
    return f"the log ends during startup{phase}, without an error: --log FILE with the lines after"


def _notes(known: _Measured) -> Iterator[str]:
    log = known.log
    if known.requested_bytes is not None and not known.states_share:
        share = f"{known.division.utilization:g}"
        yield f"assumed: {flag(r.UTILIZATION)} {share}, vLLM's default; the log states none"
    if known.oom and known.oom.others_bytes:
        stop = "stop it" + (", or leave it that much as above" if known.has_kv_cache else " first")
        yield f"another process held {gib(known.oom.others_bytes)} of that GPU: {stop}"
    if log.unread_args:
        yield f"arguments of the log that mmcalib cannot read: {', '.join(log.unread_args)}"
