"""From what a plan's rehearsals found to what the report shows of it."""

from __future__ import annotations

from mmcalib.derive.demand import ObservedOom
from mmcalib.derive.fix_search import Found
from mmcalib.derive.fixes import SIZE_HINT, Fix, effective, spelled
from mmcalib.domain.rehearsed import Rehearsed
from mmcalib.errors import MmcalibError
from mmcalib.gpus.gpu import Gpu
from mmcalib.results.part import CheckResult
from mmcalib.results.plan import Combination, Price, TriedFix
from mmcalib.workflows.memory.figures import memory
from mmcalib.workflows.plan.bench import Bench
from mmcalib.workflows.plan.reserving import Judged, judged, oom_words
from mmcalib.workflows.plan.searching import refused_by


def tried(fix: Fix, bench: Bench, gpu: Gpu) -> TriedFix:
    """One fix as it did on its own."""
    answer = bench.found((fix,)) if not fix.untried else None
    found = answer if isinstance(answer, Rehearsed) else None
    changes = dict(fix.changes) if fix.untried else bench.changes((fix,))
    problem = answer.message if isinstance(answer, MmcalibError) else fix.untried
    reaches = bench.goal.reached(found) if found else None
    lacking = bench.outcome((fix,)).lacking_bytes if found else None
    at = judged(bench, (fix,), gpu) if reaches or fix.knob == SIZE_HINT else None
    if reaches and at is not None and at.lacking_bytes:
        reaches, lacking = False, at.lacking_bytes
    if answer is None and not problem:
        problem = "not rehearsed: too many before it"
    return TriedFix(
        name=fix.name,
        flags=spelled(changes) or fix.name,
        changes=changes,
        cost=fix.cost,
        price=fix.price,
        reaches=reaches,
        lacking_bytes=lacking,
        kv_cache_bytes=found.kv_cache_bytes if found else None,
        kv_cache_tokens=found.kv_cache_tokens if found else None,
        max_concurrency=found.max_concurrency if found else None,
        problem=problem,
        warning=_warning(fix, bench, found, at) if found else "",
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
    every = (*bench.required, *fixes)
    answer = bench.found(fixes) if every else None
    if not isinstance(answer, Rehearsed):
        return None
    changes = bench.changes(fixes)
    return Combination(
        fixes=[
            Price(name=f.name, flags=spelled(bench.values(f, fixes)), cost=f.cost, price=f.price)
            for f in effective(every)
        ],
        flags=spelled(changes),
        changes=changes,
        reaches=True,
        proven=True,
        reserved=reserved(judged(bench, fixes, gpu)),
        memory=memory(answer, gpu),
    )


def reserved(
    found: Judged | None, mended: Combination | None = None, oom: ObservedOom | None = None
) -> CheckResult | None:
    """R4 as a report has it; where it fails, `mended` is what to do about it, and about `oom`."""
    if found is None:
        return None
    shown = CheckResult.showing(found.check)
    if found.holds:
        return shown
    detail = f"{oom_words(oom)}. {shown.detail}" if oom else shown.detail
    return shown.model_copy(
        update={"detail": detail, "remedy": mended.flags if mended else shown.remedy}
    )


def _warning(fix: Fix, bench: Bench, found: Rehearsed, at: Judged | None) -> str:
    """What is wrong with what reaches the goal, and with a size hint in any case: the profile
    shrinks, and what vLLM admits does not; or both do, and what vLLM took before it now refuses.
    """
    hint = fix.knob == SIZE_HINT
    for modality, (before, after) in (refused_by(fix, bench) if hint else {}).items():
        return f"every {modality} of more than {after:,} tokens is refused (now {before:,})"
    if at is None or at.holds:
        return ""
    if not hint or found.budget is None:
        return at.check.detail
    (modality,) = fix.changes["limit_mm_per_prompt"]
    most = found.budget.max_tokens_per_item.get(modality, 0)
    return f"a trap: {modality} items of {most:,} tokens are still admitted; {at.check.detail}"
