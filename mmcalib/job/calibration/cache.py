"""The caches in words: how the processor cache was sized (R7), what the encoder's holds (R6)."""

from __future__ import annotations

from collections.abc import Iterator

from mmcalib.derive.checks import Check
from mmcalib.derive.mm_cache import DEFAULT_GIB, GIB
from mmcalib.derive.policy import Policy
from mmcalib.derive.residency import Residency, residencies
from mmcalib.job.decision.cache import CappedCache, SizedCache
from mmcalib.job.decision.decision import Decision
from mmcalib.report.cache import CachePoint, ProcessorCache
from mmcalib.report.calibration import Evidence
from mmcalib.report.words import gib, number, share

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
    if cache.gib:
        return "as large as the RAM budget allows: no order of requests says what would help"
    largest = gib(cache.largest_request_bytes)
    return f"off: the RAM budget does not hold the largest request, {largest}, in both processes"


def _why(cache: SizedCache) -> str:
    curve, size = cache.curve, cache.size
    first = "" if cache.complete else "the first "
    of = f"{first}{number(curve.accesses)} items in {number(cache.requests)} requests"
    if not curve.most_hits:
        return f"none of {of} comes again in a later one: a cache would never hit"
    default = f"vLLM's {DEFAULT_GIB} GiB {share(curve.rate_at(DEFAULT_GIB * GIB))}"
    if curve.largest_request_bytes > DEFAULT_GIB * GIB:
        default = f"vLLM's {DEFAULT_GIB} GiB do not hold the largest request"
    most = f"any cache at most {share(size.most_hit_rate)}, {default}"
    if not size.mm_processor_cache_gb:
        return f"off: the RAM budget allows none that helps; of {of} {most}"
    why = f"hits {share(size.hit_rate)} of {of}; {most}"
    if size.request_limited:
        why += f"; no smaller than the largest request, {gib(curve.largest_request_bytes)}"
    return f"{why}; as large as the RAM budget allows" if size.ram_limited else why


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
        complete=cache.complete,
        mm_processor_cache_gb=cache.mm_processor_cache_gb,
        total_bytes=size.total_bytes,
        hit_rate=round(size.hit_rate, 6),
        most_hit_rate=round(size.most_hit_rate, 6),
        default_hit_rate=round(curve.rate_at(DEFAULT_GIB * GIB), 6),
        curve=[
            CachePoint(capacity_bytes=capacity, hit_rate=round(rate, 6))
            for capacity, rate in curve.points(_POINTS)
        ],
    )


def cache_checks(decision: Decision, policy: Policy) -> Iterator[Check]:
    yield _processor_cache(decision.cache, policy)
    yield from _large_items(decision)


def _processor_cache(cache: SizedCache | CappedCache | str, policy: Policy) -> Check:
    name = "processor cache"
    if isinstance(cache, str):
        return Check(name, "skip", cache)
    if isinstance(cache, CappedCache):
        remedy = "" if cache.gib else "a larger --ram-budget"
        return Check(name, "pass" if cache.gib else "warn", _capped(cache), remedy)
    size = cache.size
    held = f"at most {gib(size.total_bytes)} of RAM in both processes of a server"
    detail = f"{held}, by default {gib(2 * DEFAULT_GIB * GIB)}: {_why(cache)}"
    if size.ram_limited:
        detail = f"{gib(policy.ram_budget_bytes)} are allowed, {detail}"
        return Check(name, "warn", detail, "a larger --ram-budget")
    return Check(name, "pass", detail)


def _large_items(decision: Decision) -> Iterator[Check]:
    """Items that the encoder cache does not hold at all are for `items admitted` to say."""
    name, budget = "large-item concurrency", decision.budget
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
            f"{size} tokens: {item.exemplar} stays there for the {worst.steps} or more steps of "
            f"{batched} tokens that its {item.tokens} take, and until then the next is not "
            "encoded: such requests are prefilled one after the other",
            f"--max-num-batched-tokens {2 * item.embeds} makes room for two and takes GPU memory"
            + (smaller if worst.modality in decision.turns() else ""),
        )
    elif found:
        each = (f"{number(r.items)} × {r.modality} of {r.item.embeds} tokens" for r in found)
        yield Check(name, "pass", f"the encoder cache, {size} tokens, holds {' or '.join(each)}")


def _served(decision: Decision, found: Residency) -> bool:
    return found.modality in decision.counts and decision.counts[found.modality].value > 0
