"""Switch every setting off once."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from mmcalib.decision.decision import Decision
from mmcalib.decision.explore import BudgetSource
from mmcalib.derive.costs import CostTable
from mmcalib.derive.effects import (
    Effect,
    Footprint,
    ItemOutcome,
    SettingPath,
    compare,
    differences,
    needs_company,
    settings,
    sizes,
    value_at,
    without,
)
from mmcalib.derive.limits import Hint
from mmcalib.domain.knobs import Setting
from mmcalib.domain.memory import Budget, Rehearsed
from mmcalib.domain.shapes import MODALITIES, AudioShape, ImageShape, Shape, VideoShape
from mmcalib.engine.host import EngineHost
from mmcalib.engine.messages import AskBudget, Blank, Measure
from mmcalib.engine.vllm_config import here
from mmcalib.errors import VllmRefused
from mmcalib.progress import Progress, Task

# Items that show what a setting does where the corpus does not, cheapest first: a stamp, a banner,
# a screen and a photograph of 12 megapixels; a second of video small and large, a minute and ten
# that loaders thin out; half a minute of sound and a minute.
_STANDARD: tuple[Shape, ...] = (
    ImageShape(64, 64),
    ImageShape(2048, 256),
    ImageShape(1024, 768),
    ImageShape(4096, 3072),
    VideoShape(8, 8.0, 1.0, 64, 64),
    VideoShape(1800, 30.0, 60.0, 64, 64),
    VideoShape(8, 8.0, 1.0, 1920, 1080),
    VideoShape(18_000, 30.0, 600.0, 64, 64),
    AudioShape(480_000, 16_000),
    AudioShape(960_000, 16_000),
)
# Pixels of all sampled frames of a witness twice as wide and high: a second or two to process.
_LARGER_PX = 100_000_000

_MEMORY = ("weights_bytes", "activation_peak_bytes", "kv_cache_bytes", "kv_cache_tokens")


def witnesses(modalities: Iterable[str], tables: Iterable[CostTable] = ()) -> tuple[Shape, ...]:
    """Shapes of these modalities that show what a setting does, cheapest first: of every size, and
    the heaviest of the corpus, videos also with twice the width and height.
    """
    taken = set(modalities)
    heaviest = [table.heaviest(m) for table in tables for m in MODALITIES]
    found = [shape for shape in _STANDARD if shape.modality in taken]
    own = [cost for cost in heaviest if cost is not None and cost.shape.modality in taken]
    found += [cost.shape for cost in own]
    for cost in own:
        match cost.shape:
            case VideoShape(width_px=width, height_px=height) as shape:
                if 4 * cost.sampled[0] * width * height <= _LARGER_PX:
                    found.append(replace(shape, width_px=2 * width, height_px=2 * height))
    return tuple(dict.fromkeys(found))


@dataclass(frozen=True, slots=True)
class Footprints:
    """Asks vLLM what configurations come to, each once; its host has the model open.
    `serve_defaults` fill what is not said. Without `rehearse` bytes are those of the items'
    tensors.
    """

    host: EngineHost
    model_path: str
    serve_defaults: Mapping[str, int]
    witnesses: tuple[Shape, ...]
    rehearse: Callable[[Mapping[str, Any]], Rehearsed] | None = None
    _budgets: dict[str, Footprint] = field(default_factory=dict)
    _items: dict[tuple[str, Shape], ItemOutcome] = field(default_factory=dict)

    def know(self, args: Mapping[str, Any], budget: Budget) -> None:
        """Spare a question: `budget` is that of `args`, dummies built."""
        self._budgets[_key(args, build_dummy=True)] = Footprint(budget)

    def budget(self, args: Mapping[str, Any], *, build_dummy: bool = False) -> Footprint:
        """The budget, or vLLM's words where it refuses to start; dummies of what is profiled."""
        key = _key(args, build_dummy=build_dummy)
        if key not in self._budgets:
            asked = {**self.serve_defaults, **args, "model": self.model_path}
            try:
                request = AskBudget(asked, build_dummy, only_profiled=True)
                budget = self.host.ask(request, "switching a setting off")
                self._budgets[key] = Footprint(budget)
            except VllmRefused as error:
                self._budgets[key] = Footprint(refusal=error.message)
        return self._budgets[key]

    def items(self, args: Mapping[str, Any], shapes: Iterable[Shape]) -> Footprint:
        """What vLLM makes of these witnesses."""
        setting = Setting(args.get("mm_processor_kwargs", {}), args.get("media_io_kwargs", {}))
        return Footprint(items={shape: self._taken(setting, shape) for shape in shapes})

    def _taken(self, setting: Setting, shape: Shape) -> ItemOutcome:
        key = setting.key, shape
        if key not in self._items:
            request = Measure(setting, (Blank(shape),))
            try:
                (answer,) = self.host.measure(request, "switching a setting off")
                cost, found = answer.cost, ItemOutcome(refusal=answer.refusal)
            except VllmRefused as error:
                cost, found = None, ItemOutcome(refusal=error.message)
            self._items[key] = ItemOutcome(cost.tokens, cost.tensor_bytes) if cost else found
        return self._items[key]

    def memory(self, args: Mapping[str, Any]) -> Footprint:
        """The figures of a rehearsal; nothing without one."""
        if self.rehearse is None:
            return Footprint()
        found = self.rehearse(args)
        return Footprint(memory={name: getattr(found, name) or 0 for name in _MEMORY})

    def pairs(
        self, args: Mapping[str, Any], less: Mapping[str, Any], path: SettingPath
    ) -> Iterator[tuple[Footprint, Footprint]]:
        """With and without the setting at `path`, what is cheap to ask first."""
        with_ = self.budget(args)
        yield with_, self.budget(less)
        if path[0] in ("mm_processor_kwargs", "media_io_kwargs"):
            for shape in self.witnesses:
                if path[0] != "media_io_kwargs" or shape.modality == path[1]:
                    yield self.items(args, [shape]), self.items(less, [shape])
        elif sizes(path):
            if with_.budget is not None and with_.budget.profiled_modality == path[1]:
                yield self.budget(args, build_dummy=True), self.budget(less, build_dummy=True)
        elif len(path) == 1:
            yield self.memory(args), self.memory(less)

    def smallest(self) -> list[Shape]:
        """The cheapest witness of each modality."""
        first = {shape.modality: shape for shape in reversed(self.witnesses)}
        return list(first.values())


def _key(args: Mapping[str, Any], *, build_dummy: bool) -> str:
    return json.dumps([args, build_dummy], sort_keys=True, default=str)


_BESIDE = "the installed versions fill it in; others refuse the setting beside it without it"


def effects(
    engine_args: Mapping[str, Any],
    asked: Footprints,
    task: Task | None = None,
    beside: Mapping[SettingPath, SettingPath] = MappingProxyType({}),
) -> tuple[list[Effect], dict[str, Any]]:
    """The effect of every setting, and the arguments without idle ones. An option that vLLM cannot
    miss alone goes with its mapping; one written `beside` another stays with that. Raises
    EngineError where vLLM refuses the arguments.
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
    if path[0] != "mm_processor_kwargs" or len(path) < 3:
        return path
    less, shapes = without(args, path), asked.smallest()
    bare = replace(asked.items(less, shapes), refusal=asked.budget(less).refusal)
    if needs_company(asked.items(args, shapes), bare):
        return _whole(args, path[:-1], asked)
    return path


def effective(decision: Decision, budgets: BudgetSource, progress: Progress) -> Decision:
    """The decision with the effect of every setting, and without those that have none."""
    served = [modality for modality, count in decision.counts.items() if count.value]
    defaults = budgets.opened.serve_defaults
    shown = witnesses(served, (decision.default_table, decision.table))
    asked = Footprints(budgets.host, budgets.model_path, defaults, shown)
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
        # What is idle alone and not together with the rest of its kind stays.
        words = f"without it and the others that seemed idle: {'; '.join(together)}"
        moved = (
            replace(effect, outcome="moves", words=words) if effect.outcome == "idle" else effect
            for effect in found
        )
        return replace(decision, effects=tuple(moved))
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


def _hint(hint: Hint, limit: Any) -> Hint:
    return {a: value for a, value in hint.items() if isinstance(limit, dict) and a in limit}
