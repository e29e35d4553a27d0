"""The caches in words: how the processor cache was sized (R7), what the encoder's holds (R6)."""

from __future__ import annotations

from collections.abc import Iterator

from mmcalib.checks.check import Check
from mmcalib.checks.reserve import LARGE_ITEMS, PROCESSOR_CACHE
from mmcalib.derive.limits import Residency, residencies
from mmcalib.derive.policy import Policy
from mmcalib.derive.processor_cache import CacheFloor, parts, written_gib
from mmcalib.releases.constants import PROCESSOR_CACHE_GIB, PROCESSOR_CACHES
from mmcalib.results.calibration import CachePoint, Evidence, ProcessorCache
from mmcalib.sizes import GIB
from mmcalib.wording import gib, number, several, share
from mmcalib.workflows.decision.cache import CappedCache, DecidedCache, SizedCache, UnsizedCache
from mmcalib.workflows.decision.decision import Decision

SETTING = "mm_processor_cache_gb"
# Enough to draw the curve.
_POINTS = 32


def cache_evidence(decision: Decision) -> Iterator[Evidence]:
    cache = decision.cache
    if isinstance(cache, SizedCache):
        yield Evidence(
            setting=SETTING,
            value=cache.mm_processor_cache_gb,
            label="computed",
            reason=_why(cache),
            exemplar=cache.often if cache.times > 1 else "",
        )
    elif isinstance(cache, CappedCache):
        value = cache.mm_processor_cache_gb
        yield Evidence(setting=SETTING, value=value, label="computed", reason=_capped(cache))


def _capped(cache: CappedCache) -> str:
    most = f"one admissible request may bring {_floor(cache.floor)}"
    if cache.gib:
        at_most = (
            "the RAM budget allows"
            if cache.allowed_gib < PROCESSOR_CACHE_GIB
            else "one request needs"
        )
        return f"as large as {at_most}: no order of requests says what would help; {most}"
    allows = f"the RAM budget allows {cache.allowed_gib:g} GiB for each process"
    if not cache.budgeted:
        allows = f"vLLM's default of {PROCESSOR_CACHE_GIB} GiB does not hold that"
    return f"off: {most}; {allows}, and vLLM fails requests that its cache does not hold"


def _floor(floor: CacheFloor) -> str:
    return f"{' + '.join(parts(floor))} = {gib(floor.nbytes)}"


def _why(cache: SizedCache) -> str:
    curve, size = cache.curve, cache.size
    first = "" if cache.complete else "the first "
    of = f"{first}{number(curve.accesses)} items in {several(cache.requests, 'request')}"
    if not curve.most_hits:
        return f"none of {of} comes again in a later one: a cache would never hit"
    default = f"vLLM's {PROCESSOR_CACHE_GIB} GiB {share(curve.rate_at(PROCESSOR_CACHE_GIB * GIB))}"
    if size.floor_bytes > PROCESSOR_CACHE_GIB * GIB:
        default = f"vLLM's {PROCESSOR_CACHE_GIB} GiB do not hold the largest admissible request"
    most = f"any cache at most {share(size.most_hit_rate)}, {default}"
    if not size.mm_processor_cache_gb:
        why = f"off: {_refused(cache)}; of {of} {most}"
    else:
        why = f"hits {share(size.hit_rate)} of {of}; {most}"
    if size.floor_limited:
        why += f"; no smaller than what one admissible request may bring, {_floor(cache.floor)}"
    if size.limited:
        why += f"; {share(size.wanted_hit_rate)} would take {size.wanted_gib:g} GiB in each process"
    return why


def _refused(cache: SizedCache) -> str:
    """Why there is no cache though items come again."""
    size = cache.size
    allowed = f"{size.allowed_gib:g} GiB in each process are allowed"
    if size.unsafe:
        return f"{allowed}, and one admissible request may bring {_floor(cache.floor)}"
    return f"{allowed}, of which none helps"


def cache_report(decision: Decision) -> ProcessorCache | None:
    """What `calibration.json` says of the processor cache; None where it was not sized."""
    cache = decision.cache
    if not isinstance(cache, SizedCache):
        return None
    curve, size = cache.curve, cache.size
    return ProcessorCache(
        requests=cache.requests,
        accesses=curve.accesses,
        distinct=curve.distinct,
        distinct_bytes=curve.distinct_bytes,
        largest_request_bytes=curve.largest_request_bytes,
        admissible_request_bytes=size.floor_bytes,
        complete=cache.complete,
        mm_processor_cache_gb=cache.mm_processor_cache_gb,
        total_bytes=size.total_bytes,
        wanted_gb=size.wanted_gib,
        wanted_hit_rate=round(size.wanted_hit_rate, 6),
        hit_rate=round(size.hit_rate, 6),
        most_hit_rate=round(size.most_hit_rate, 6),
        default_hit_rate=round(curve.rate_at(PROCESSOR_CACHE_GIB * GIB), 6),
        curve=[
            CachePoint(capacity_bytes=capacity, hit_rate=round(rate, 6))
            for capacity, rate in curve.points(_POINTS)
        ],
    )


def cache_checks(decision: Decision, policy: Policy) -> Iterator[Check]:
    given = decision.engine_args.get("mm_processor_cache_gb")
    if isinstance(decision.cache, UnsizedCache) and given is not None:
        yield Check(PROCESSOR_CACHE, "skip", f"not sized: no requests; your {given:g} GiB hold")
    else:
        yield _processor_cache(decision.cache, policy)
    yield from _large_items(decision)


def _processor_cache(cache: DecidedCache, policy: Policy) -> Check:
    name = PROCESSOR_CACHE
    if isinstance(cache, UnsizedCache):
        return Check(name, "skip", cache.reason)
    if isinstance(cache, CappedCache):
        least = f"--ram-budget {PROCESSOR_CACHES * written_gib(cache.floor.nbytes):g}GiB or more"
        remedy = "" if cache.gib else f"{least}, where the host has that"
        return Check(name, "pass" if cache.gib else "warn", _capped(cache), remedy)
    size = cache.size
    held = f"at most {gib(size.total_bytes)} of RAM in both processes of a server"
    detail = (
        f"{held}, by default {gib(PROCESSOR_CACHES * PROCESSOR_CACHE_GIB * GIB)}: {_why(cache)}"
    )
    if not size.limited:
        return Check(name, "pass", detail)
    more = f"--ram-budget {PROCESSOR_CACHES * size.wanted_gib:g}GiB, where the host has that"
    if policy.ram_budget_bytes is None:
        return Check(name, "pass", f"{detail}: {more}")
    return Check(name, "warn", f"{gib(policy.ram_budget_bytes)} are allowed, {detail}", more)


def _large_items(decision: Decision) -> Iterator[Check]:
    """Items that the encoder cache does not hold at all are for `items admitted` to say."""
    name, budget = LARGE_ITEMS, decision.budget
    size = budget.encoder_cache_size
    found = [r for r in residencies(decision.table, budget) if r.items and _served(decision, r)]
    blocking = [r for r in found if r.blocks]
    if blocking and budget.max_num_seqs > 1:
        worst = max(blocking, key=lambda r: r.steps)
        item, batched = worst.item, budget.max_num_batched_tokens
        smaller = "; --max-tokens-per-item makes them smaller"
        yield Check(
            name,
            "warn",
            f"{worst.alone} {worst.modality} items each fill over half of the encoder cache, "
            f"{size} tokens: {item.exemplar} occupies it for at least {worst.steps} steps of "
            f"{batched} tokens; the next large {worst.modality} waits",
            f"--max-num-batched-tokens {2 * item.embeds} makes room for two and takes GPU memory"
            + (smaller if worst.modality in decision.turns() else ""),
            (item.exemplar,),
        )
    elif found:
        each = (f"{number(r.items)} × {r.modality} of {r.item.embeds} tokens" for r in found)
        yield Check(name, "pass", f"the encoder cache, {size} tokens, holds {' or '.join(each)}")


def _served(decision: Decision, found: Residency) -> bool:
    return found.modality in decision.counts and decision.counts[found.modality].value > 0
