"""R8: every setting is switched off once; what changes nothing is left out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from mmcalib.derive.effects import (
    Effect,
    Footprint,
    SettingPath,
    compare,
    differences,
    enclosing,
    needs_company,
    settings,
    value_at,
    without,
)
from mmcalib.derive.limits import Hint
from mmcalib.domain.setting import Setting
from mmcalib.engine.vllm_config import here
from mmcalib.errors import VllmRefused
from mmcalib.progress import Progress, Task
from mmcalib.workflows.decision.budgets import BudgetSource
from mmcalib.workflows.decision.decision import Decision
from mmcalib.workflows.decision.footprints import Footprints, witnesses

_BESIDE = "the installed versions fill it in; others refuse the setting beside it without it"


def effects(
    engine_args: Mapping[str, Any],
    asked: Footprints,
    task: Task | None = None,
    beside: Mapping[SettingPath, SettingPath] = MappingProxyType({}),
) -> tuple[list[Effect], dict[str, Any]]:
    """The effect of every setting, and the arguments without those that have none.

    An option that vLLM refuses to miss on its own is switched off with the mapping that holds it.
    One that is written `beside` another stays as long as that does. Raises EngineError where vLLM
    refuses the arguments as they are.
    """
    start = asked.budget(engine_args)
    if start.budget is None:
        raise VllmRefused(f"vLLM refuses this configuration: {start.refusal}")
    found: list[Effect] = []
    left = dict(engine_args)
    for path in settings(engine_args):
        if not any(effect.concerns(".".join(path)) for effect in found):
            effect = _effect(left, path, asked)
            if effect.outcome == "idle" and beside.get(effect.path) in settings(left):
                effect = replace(effect, outcome="stated", words=_BESIDE)
            found.append(effect)
            if effect.outcome == "idle":
                left = without(left, effect.path)
        if task is not None:
            task.advance()
    return found, left


def _effect(args: Mapping[str, Any], path: SettingPath, asked: Footprints) -> Effect:
    path = _whole(args, path, asked)
    less = without(args, path)
    for with_, bare in asked.pairs(args, less, path):
        effect = compare(path, value_at(args, path), with_, bare)
        if effect.moved:
            break
    return effect


def _whole(args: Mapping[str, Any], path: SettingPath, asked: Footprints) -> SettingPath:
    """The smallest setting around `path` that vLLM accepts the absence of."""
    wider = enclosing(path)
    if path[0] != "mm_processor_kwargs" or wider is None:
        return path
    less, shapes = without(args, path), asked.smallest()
    bare = replace(asked.items(less, shapes), refusal=asked.budget(less).refusal)
    if needs_company(asked.items(args, shapes), bare):
        return _whole(args, wider, asked)
    return path


def effective(decision: Decision, budgets: BudgetSource, progress: Progress) -> Decision:
    """The decision with the effect of every setting, and without those that have none."""
    served = [modality for modality, count in decision.counts.items() if count.value]
    asked = Footprints(
        budgets.host,
        budgets.model_path,
        budgets.opened.serve_defaults,
        witnesses(served, (decision.default_table, decision.table)),
    )
    args = here(decision.engine_args, budgets.opened.device)
    asked.know(args, decision.budget)
    beside: dict[SettingPath, SettingPath] = {
        p.knob.place(name): p.knob.place()
        for p in decision.chosen
        for name in p.knob.companions(p.value)
    }
    with progress.step("switching each setting off once", len(settings(args))) as task:
        found, left = effects(args, asked, task, beside)
    if left == args:
        return replace(decision, effects=tuple(found))
    budget = budgets.of(left, build_dummy=True)
    together = list(differences(Footprint(decision.budget), Footprint(budget)))
    if together:
        words = f"without it and the others that seemed idle: {'; '.join(together)}"
        return replace(decision, effects=tuple(_spoken_for(found, words)))
    kept = {m: _hint(hint, left["limit_mm_per_prompt"][m]) for m, hint in decision.hints.items()}
    idle = {m: "what vLLM profiles is the same" for m, hint in kept.items() if not hint}
    return replace(
        decision,
        effects=tuple(found),
        engine_args={
            name: left.get(name, value)
            for name, value in decision.engine_args.items()
            if name in left or name not in args
        },
        budget=budget,
        setting=Setting(left.get("mm_processor_kwargs", {}), left.get("media_io_kwargs", {})),
        hints={m: hint for m, hint in kept.items() if hint},
        refused_hints={**decision.refused_hints, **idle},
    )


def _spoken_for(found: Iterable[Effect], words: str) -> Iterator[Effect]:
    """What is idle alone and not together with the rest of its kind stays."""
    for effect in found:
        idle = effect.outcome == "idle"
        yield replace(effect, outcome="moves", words=words) if idle else effect


def _hint(hint: Hint, limit: Any) -> Hint:
    """What is left of a size hint."""
    return {
        axis: value for axis, value in hint.items() if isinstance(limit, dict) and axis in limit
    }
