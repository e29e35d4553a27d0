"""R4 of what a plan proposes, judged as `run` and `validate` judge it, and what mends it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final, Literal

from mmcalib.checks.catalogue.limits import LIMIT, hint, unhinted
from mmcalib.checks.catalogue.reserve import embeddings_alone
from mmcalib.checks.catalogue.reserve import reserved_check as tokens_check
from mmcalib.checks.check import Check
from mmcalib.checks.configuration import Configured
from mmcalib.derive.costs import CostTable
from mmcalib.derive.cures import Engine
from mmcalib.derive.demand import Shortfall
from mmcalib.derive.fix import COSTS, Cost, Fix
from mmcalib.derive.fix_search import Found
from mmcalib.derive.fixes.size_hint import SIZE_HINT
from mmcalib.derive.limits import Count
from mmcalib.domain.budget import Budget
from mmcalib.domain.rehearsed import Rehearsed
from mmcalib.domain.setting import DEFAULT
from mmcalib.domain.shapes import MODALITIES
from mmcalib.gpus.gpu import Gpu
from mmcalib.workflows.memory.checks import predicted_shortfall, reserved_check
from mmcalib.workflows.memory.cured import cured
from mmcalib.workflows.memory.figures import rehearsed_adequacy
from mmcalib.workflows.memory.predicted import Predicted
from mmcalib.workflows.memory.tokens_alone import in_tokens, not_rehearsed
from mmcalib.workflows.memory.worst_steps import configurations
from mmcalib.workflows.plan.bench import Bench

Verdict = Literal["reached already", "reached", "under-reserved", "out of reach"]

_REMEDY: Final = (
    "another --gpu, a lower --goal, or `mmcalib run --gpu`, which caps items by your own"
)


@dataclass(frozen=True, slots=True)
class Judged:
    """R4 of one configuration; `shortfall` is None where it is not known in bytes."""

    check: Check
    shortfall: Shortfall | None
    configuration: Configured


@dataclass(frozen=True, slots=True)
class Settled:
    """What a plan comes to: `best` holds what it reserves, unless the verdict is a no."""

    verdict: Verdict
    best: Found


def judged(bench: Bench, fixes: tuple[Fix, ...], gpu: Gpu) -> Judged | None:
    """R4 under these fixes, of vLLM's own dummies: no corpus is here. None where they were not
    rehearsed, or no media are served.
    """
    answer = bench.found(fixes)
    if not isinstance(answer, Rehearsed) or answer.budget is None:
        return None
    configuration = _configured(bench, fixes, answer, answer.budget)
    every = list(configurations(configuration))
    found = bench.prediction.every([args for _, args in every])
    steps = {m: step for (m, _), step in zip(every, found, strict=True) if step is not None}
    predicted = Predicted(gpu, None, answer, steps=steps, failure=bench.prediction.failure)
    check = reserved_check(predicted, configuration, allow_under_reserve=False)
    if check is None:
        command = shlex.join(["mmcalib", "rehearse", "--model", str(bench.engine_args["model"])])
        tokens = embeddings_alone(answer.budget) or tokens_check(
            configuration.adequacy, answer.budget.profiled_modality, ()
        )
        (check,) = in_tokens([tokens], configuration, not_rehearsed(predicted, command))
    if check.status == "fail":
        check = replace(check, remedy=_REMEDY)
    return Judged(check, predicted_shortfall(predicted, configuration), configuration)


def settled(bench: Bench, found: Found, gpu: Gpu) -> Settled:
    """The combination if what startup reserves holds it, as it is or mended; else the first of the
    others that does.
    """
    if not found.reached:
        return Settled("out of reach", found)
    asked = (found.best, *found.others)
    every = [_held(bench, fixes, gpu) for fixes in asked]
    held = list(dict.fromkeys(fixes for fixes in every if fixes is not None))
    if not held:
        return Settled("under-reserved", found)
    mended = tuple(fixes for fixes in held if fixes not in asked)
    # With what is mended less may do; of nothing else nothing can be left out.
    proven = found.proven and (held[0] == found.best or not found.best)
    best = replace(found, best=held[0], others=tuple(held[1:]), proven=proven, mended=mended)
    return Settled("reached" if best.best else "reached already", best)


def _held(bench: Bench, fixes: tuple[Fix, ...], gpu: Gpu) -> tuple[Fix, ...] | None:
    """These fixes if they hold, else with other values of the engine under which they do and still
    reach the goal; None where there are none.
    """
    at = judged(bench, fixes, gpu)
    if at is None or at.check.status != "fail":
        return fixes
    mends = sorted(_mends(bench, fixes, at, gpu), key=lambda fix: COSTS.index(fix.cost))
    if not mends:
        return None
    mended = (*(fix for fix in fixes if fix.knob not in mends[0].changes), mends[0])
    bench.outcome(mended)
    return mended


def _mends(bench: Bench, fixes: tuple[Fix, ...], at: Judged, gpu: Gpu) -> Iterator[Fix]:
    """Each rehearsed as a whole."""
    if (without := _without_hints(bench)) and bench.kept.allows(without):
        together = (*fixes, without)
        found = judged(bench, together, gpu) if bench.outcome(together).reached else None
        if found is not None and found.check.status != "fail":
            yield without
    if at.shortfall is None:
        return
    for cure in cured(at.shortfall, at.configuration, bench.prediction.every):
        mend = _mend(cure.engine, at.configuration.budget)
        if bench.kept.allows(mend) and bench.reached(cure.rehearsed):
            yield mend


def _without_hints(bench: Bench) -> Fix | None:
    """Without size hints, which shrink what vLLM profiles with, and mostly not what it admits; None
    where there are none.
    """
    limits, plain = bench.engine_args.get(LIMIT) or {}, unhinted(bench.engine_args)
    without: dict[str, dict[str, int | None]] = {
        modality: {"count": plain[LIMIT][modality], **dict.fromkeys(hints)}
        for modality in limits
        if (hints := hint(limits, modality))
    }
    if not without:
        return None
    return Fix(
        name=f"no size hint for {', '.join(without)}",
        knob=SIZE_HINT,
        changes={LIMIT: without},
        cost="nothing",
        price="vLLM's profile reserves for the largest item that it admits",
    )


def _mend(engine: Engine, before: Budget) -> Fix:
    seqs, batch = engine.max_num_seqs, engine.max_num_batched_tokens
    cost: Cost = "nothing"
    prices = []
    if seqs is not None:
        less = seqs < before.max_num_seqs
        cost = "speed" if less else cost
        prices.append(f"at most {seqs} requests run at once" if less else _reserves(seqs))
    if batch is not None:
        less = batch < before.max_num_batched_tokens
        cost = "speed" if less else cost
        reads = f"prompts are read {batch:,} tokens at a time"
        prices.append(f"{reads}: slower first answers" if less else f"{reads}, and reserved for")
    return Fix(
        name=", ".join(f"{name}={value}" for name, value in engine.values.items()),
        knob="reserve",
        changes=engine.values,
        cost=cost,
        price="; ".join(prices),
    )


def _reserves(seqs: int) -> str:
    return f"up to {seqs} requests run at once, and vLLM's profile reserves for them"


def _configured(
    bench: Bench, fixes: tuple[Fix, ...], answer: Rehearsed, budget: Budget
) -> Configured:
    args = bench.args(fixes)
    # vLLM's budget leaves out what is not served; a limit that nobody names admits its largest.
    named = {m: 0 for m in MODALITIES if m in (args.get(LIMIT) or {})}
    counts = named | budget.max_items_per_prompt
    return Configured(
        engine_args=args,
        counts={m: Count(count, "", "computed") for m, count in counts.items()},
        budget=budget,
        plain=budget,
        adequacy=rehearsed_adequacy(answer, budget),
        table=CostTable(DEFAULT, {}),
    )
