"""All fixes that there are for one configuration, tried on a bench and combined."""

from __future__ import annotations

from typing import Final

from mmcalib.derive.every_fix import every_fix
from mmcalib.derive.facts import Facts
from mmcalib.derive.fix import Fix, Outcome
from mmcalib.derive.fix_search import Found, cheapest
from mmcalib.progress import Progress
from mmcalib.workflows.plan.bench import Bench

# About two seconds each; a minute is what people wait for. Worst steps come on top.
MOST_REHEARSALS: Final = 25
# For what else reaches the goal.
MORE_REHEARSALS: Final = 10


def searched(bench: Bench, facts: Facts, progress: Progress) -> tuple[list[Fix], Found]:
    """The fixes, and what came of them."""
    fixes = every_fix(bench.engine_args, facts, bench.goal, bench.kept)
    base = bench.outcome(())
    left = MOST_REHEARSALS - bench.prediction.count
    with progress.step("rehearsing fixes", left + MORE_REHEARSALS) as task:

        def evaluate(chosen: tuple[Fix, ...]) -> Outcome:
            task.advance()
            return bench.outcome(chosen)

        return fixes, cheapest(fixes, base, evaluate, left, MORE_REHEARSALS)
