"""From what a plan's rehearsals found to what the report shows of it."""

from __future__ import annotations

from mmcalib.derive.fix import Fix, spelled
from mmcalib.derive.fix_search import Found
from mmcalib.derive.fixes.size_hint import SIZE_HINT
from mmcalib.domain.rehearsed import Rehearsed
from mmcalib.errors import MmcalibError
from mmcalib.gpus.gpu import Gpu
from mmcalib.result.check_result import CheckResult
from mmcalib.result.plan import Combination, Price, TriedFix
from mmcalib.workflows.plan.bench import Bench
from mmcalib.workflows.plan.reserving import Judged, judged
from mmcalib.workflows.plan.searching import refused_by


def tried(fix: Fix, bench: Bench, gpu: Gpu) -> TriedFix:
    """One fix as it did on its own."""
    answer = bench.found((fix,)) if not fix.untried else None
    found = answer if isinstance(answer, Rehearsed) else None
    stands = bench.stands(found) if found else None
    problem = answer.message if isinstance(answer, MmcalibError) else fix.untried
    if answer is None and not problem:
        problem = "not rehearsed: too many before it"
    return TriedFix(
        name=fix.name,
        flags=fix.flags,
        changes=dict(fix.changes),
        cost=fix.cost,
        price=fix.price,
        reaches=bench.goal.reached(stands) if stands else None,
        lacking_bytes=bench.outcome((fix,)).lacking_bytes if found else None,
        kv_cache_bytes=stands.kv_cache_bytes if stands else None,
        kv_cache_tokens=stands.kv_cache_tokens if stands else None,
        max_concurrency=stands.max_concurrency if stands else None,
        label=bench.standing.label(found) if found else None,
        problem=problem,
        warning=_warning(fix, bench, found, gpu) if found else "",
    )


def best(found: Found, bench: Bench, gpu: Gpu) -> Combination | None:
    """The best of all, with what it costs; None where nothing could be combined."""
    one = _combination(found.best, bench, gpu)
    return one and one.model_copy(update={"reaches": found.reached, "proven": found.proven})


def others(found: Found, bench: Bench, gpu: Gpu) -> list[Combination]:
    """What else reaches the goal."""
    every = ((fixes, _combination(fixes, bench, gpu)) for fixes in found.others)
    return [
        one.model_copy(update={"proven": fixes not in found.mended})
        for fixes, one in every
        if one is not None
    ]


def _combination(fixes: tuple[Fix, ...], bench: Bench, gpu: Gpu) -> Combination | None:
    answer = bench.found(fixes) if fixes else None
    if not isinstance(answer, Rehearsed):
        return None
    changes = bench.changes(fixes)
    return Combination(
        fixes=[Price(name=f.name, flags=f.flags, cost=f.cost, price=f.price) for f in fixes],
        flags=spelled(changes),
        changes=changes,
        reaches=True,
        proven=True,
        reserved=reserved(judged(bench, fixes, gpu)),
        memory=bench.standing.memory(answer, gpu),
    )


def reserved(found: Judged | None) -> CheckResult | None:
    """R4 as a report has it."""
    return CheckResult.showing(found.check) if found else None


def _warning(fix: Fix, bench: Bench, found: Rehearsed, gpu: Gpu) -> str:
    """What is wrong with what reaches the goal, and with a size hint in any case: the profile
    shrinks, and what vLLM admits does not; or both do, and what vLLM took before it now refuses.
    """
    hint = fix.knob == SIZE_HINT
    if not hint and not bench.reached(found):
        return ""
    for modality, (before, after) in (refused_by(fix, bench) if hint else {}).items():
        return f"every {modality} of more than {after:,} tokens is refused (now {before:,})"
    at = judged(bench, (fix,), gpu)
    if at is None or at.check.status != "fail":
        return ""
    if not hint or found.budget is None:
        return at.check.detail
    (modality,) = fix.changes["limit_mm_per_prompt"]
    most = found.budget.max_tokens_per_item.get(modality, 0)
    return f"a trap: {modality} items of {most:,} tokens are still admitted; {at.check.detail}"
