"""From what a plan's rehearsals found to what the report shows of it."""

from __future__ import annotations

from mmcalib.derive.cheapest import Found
from mmcalib.derive.demand import SLACK_BYTES
from mmcalib.derive.fixes import Fix, spelled
from mmcalib.engine.messages import Rehearsed
from mmcalib.gpus.gpu import Gpu
from mmcalib.job.memory.figures import memory
from mmcalib.job.plan.bench import Bench
from mmcalib.report.plan import Combination, Price, TriedFix

_GIB = 1 << 30


def tried(fix: Fix, bench: Bench, base: Rehearsed) -> TriedFix:
    """One fix as it did on its own."""
    answer = bench.found((fix,)) if not fix.untried else None
    found = answer if isinstance(answer, Rehearsed) else None
    problem = answer if isinstance(answer, str) else fix.untried
    if answer is None and not problem:
        problem = "not rehearsed: too many before it"
    return TriedFix(
        name=fix.name,
        flags=fix.flags,
        changes=dict(fix.changes),
        cost=fix.cost,
        price=fix.price,
        reaches=bench.goal.reached(found) if found else None,
        lacking_bytes=bench.outcome((fix,)).lacking_bytes if found else None,
        kv_cache_bytes=found.kv_cache_bytes if found else None,
        kv_cache_tokens=found.kv_cache_tokens if found else None,
        max_concurrency=found.max_concurrency if found else None,
        problem=problem,
        warning=_trap(fix, base, found) if found and fix.knob == "size hint" else "",
    )


def combination(found: Found, bench: Bench, gpu: Gpu) -> Combination | None:
    """The best of all, with what it costs; None where nothing could be combined."""
    answer = bench.found(found.best) if found.best else None
    if not isinstance(answer, Rehearsed):
        return None
    changes = bench.changes(found.best)
    return Combination(
        fixes=[Price(name=f.name, flags=f.flags, cost=f.cost, price=f.price) for f in found.best],
        flags=spelled(changes),
        changes=changes,
        reaches=found.reached,
        proven=found.proven,
        memory=memory(answer, gpu),
    )


def _trap(fix: Fix, base: Rehearsed, found: Rehearsed) -> str:
    """What is wrong with a size hint: the profile shrinks, and what vLLM admits does not; or both
    do, and what vLLM took before it now refuses.
    """
    if base.budget is None or found.budget is None:
        return ""
    for modality in fix.changes["limit_mm_per_prompt"]:
        before = base.budget.max_tokens_per_item.get(modality, 0)
        after = found.budget.max_tokens_per_item.get(modality, 0)
        reserved = found.activation_peak_bytes + SLACK_BYTES
        if before == after and reserved < base.activation_peak_bytes:
            peak = base.activation_peak_bytes / _GIB
            return (
                f"a trap: a {modality} of {before:,} tokens is still admitted, and takes "
                f"{peak:.2f} GiB that nothing reserves; processor kwargs make it smaller"
            )
        if after < before:
            return f"every {modality} of more than {after:,} tokens is refused (now {before:,})"
    return ""
