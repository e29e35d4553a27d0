"""All fixes that there are for one configuration, tried on a bench and combined."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from mmcalib.derive.fix_search import Evaluate, Found, cheapest
from mmcalib.derive.fixes import LAST, Facts, Fix, Outcome, every_fix
from mmcalib.domain.rehearsed import Rehearsed
from mmcalib.domain.shapes import Modality
from mmcalib.progress import Progress
from mmcalib.workflows.plan.bench import Bench

# About two seconds each; a minute is what people wait for. Worst steps come on top.
MOST_REHEARSALS: Final = 25
# For what else reaches the goal.
MORE_REHEARSALS: Final = 10


def searched(
    bench: Bench, facts: Facts, progress: Progress, outcome: Evaluate | None = None
) -> tuple[list[Fix], Found]:
    """The fixes, and what came of them; of each combination decides its `outcome`, the bench's
    unless another is given.
    """
    left = MOST_REHEARSALS if outcome else MOST_REHEARSALS - bench.prediction.count
    outcome = outcome or bench.outcome
    base = outcome(())
    with progress.step("rehearsing fixes", left + MORE_REHEARSALS) as task:
        fixes = _priced(every_fix(bench.engine_args, facts, bench.goal, bench.kept), bench)

        def evaluate(chosen: tuple[Fix, ...]) -> Outcome:
            task.advance()
            return outcome(chosen)

        return fixes, cheapest(fixes, base, evaluate, left, MORE_REHEARSALS)


def _priced(fixes: list[Fix], bench: Bench) -> list[Fix]:
    """With what a cap turns away: of Qwen2-VL and others vLLM sizes its largest video by the cap of
    images, and refuses larger ones, though nothing makes them smaller.
    """
    refused: dict[str, str] = {}
    for fix in fixes:
        if fix.shrinks is None or not fix.alone:
            continue
        bench.outcome((fix,))
        for modality in refused_by(fix, bench):
            refused[fix.knob] = f"; larger {modality} items are refused: vLLM's largest shrinks too"
    return [
        replace(
            fix,
            cost="requests",
            price=fix.price + refused[fix.knob],
            severity=LAST + fix.level,
        )
        if fix.knob in refused
        else fix
        for fix in fixes
    ]


def refused_by(fix: Fix, bench: Bench) -> dict[Modality, tuple[int, int]]:
    """Tokens of the largest item of each modality that is served, before and under a fix that was
    rehearsed, where larger ones are refused then.
    """
    before, after = bench.found(()), bench.found((fix,))
    if not isinstance(before, Rehearsed) or not isinstance(after, Rehearsed):
        return {}
    if before.budget is None or after.budget is None:
        return {}
    served = after.budget.max_tokens_per_item
    return {
        modality: (most, served[modality])
        for modality, most in before.budget.max_tokens_per_item.items()
        if modality != fix.shrinks and 0 < served.get(modality, 0) < most
    }
