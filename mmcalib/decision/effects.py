"""Switch each setting off once and compare, to drop those without effect."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from mmcalib.checks.facts import Decision
from mmcalib.configs.opening import without_gpu_args
from mmcalib.decision.explore import BudgetSource
from mmcalib.domain.knobs import Setting
from mmcalib.domain.shapes import MODALITIES, AudioShape, ImageShape, Shape, VideoShape, scaled
from mmcalib.engine.host import EngineHost
from mmcalib.engine.messages import Blank, ComputeBudget, Measure
from mmcalib.errors import VllmRefused
from mmcalib.limits.costs import CostTable
from mmcalib.limits.effects import (
    Effect,
    Footprint,
    ItemOutcome,
    SettingPath,
    compare_footprints,
    describe_differences,
    is_size_hint,
    list_settings,
    remove_setting,
)
from mmcalib.progress import Progress, Task

# Items that show a setting's effect if the corpus does not, cheapest first: a stamp, a banner, a
# screen and a photograph of 12 megapixels; a second of small and of large video, and one and ten
# minutes that loaders sample; half a minute and a minute of audio.
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
# Most pixels of the sampled frames of a doubled video: one or two seconds to process.
_LARGER_PX = 100_000_000


def probe_shapes(modalities: Iterable[str], tables: Iterable[CostTable] = ()) -> tuple[Shape, ...]:
    """Return shapes that show a setting's effect, cheapest first: standard sizes, and the corpus'
    heaviest item of each modality, videos also at twice the width and height.
    """
    wanted = set(modalities)
    heaviest = [table.heaviest(m) for table in tables for m in MODALITIES]
    shapes = [shape for shape in _STANDARD if shape.modality in wanted]
    own = [cost for cost in heaviest if cost is not None and cost.shape.modality in wanted]
    shapes += [cost.shape for cost in own]
    for cost in own:
        if isinstance(shape := cost.shape, VideoShape):
            pixels = 4 * cost.sampled[0] * shape.width_px * shape.height_px
            shapes += [scaled(shape, 2)] if pixels <= _LARGER_PX else []
    return tuple(dict.fromkeys(shapes))


@dataclass(frozen=True, slots=True)
class Footprints:
    """Gets budgets and item costs of configurations from vLLM; the host has the model open, and
    caches them. `serve_defaults` fill missing arguments.
    """

    host: EngineHost
    model_path: str
    serve_defaults: Mapping[str, int]
    shapes: tuple[Shape, ...]

    def budget(self, args: Mapping[str, Any], *, build_dummy: bool = False) -> Footprint:
        """Return the budget or vLLM's refusal; dummies are those of the profiled modality."""
        full = {**self.serve_defaults, **args, "model": self.model_path}
        request = ComputeBudget(full, build_dummy, only_profiled=True)
        try:
            return Footprint(self.host.ask(request, "switching a setting off"))
        except VllmRefused as error:
            return Footprint(refusal=error.message)

    def items(self, args: Mapping[str, Any], shapes: Iterable[Shape]) -> Footprint:
        """Return vLLM's costs or refusals of blanks of these shapes."""
        setting = Setting(args.get("mm_processor_kwargs", {}), args.get("media_io_kwargs", {}))
        return Footprint(items={shape: self._measure(setting, shape) for shape in shapes})

    def _measure(self, setting: Setting, shape: Shape) -> ItemOutcome:
        request = Measure(setting, (Blank(shape),))
        try:
            (answer,) = self.host.measure(request, "switching a setting off")
        except VllmRefused as error:
            return ItemOutcome(refusal=error.message)
        cost, refused = answer.cost, ItemOutcome(refusal=answer.refusal)
        return ItemOutcome(cost.tokens, cost.tensor_bytes) if cost else refused

    def pairs(
        self, args: Mapping[str, Any], less: Mapping[str, Any], path: SettingPath
    ) -> Iterator[tuple[Footprint, Footprint]]:
        """Yield footprints with and without the setting at `path`, the cheapest first."""
        with_ = self.budget(args)
        yield with_, self.budget(less)
        if path[0] in ("mm_processor_kwargs", "media_io_kwargs"):
            for shape in self.shapes:
                if path[0] != "media_io_kwargs" or shape.modality == path[1]:
                    yield self.items(args, [shape]), self.items(less, [shape])
        elif is_size_hint(path) and with_.budget and with_.budget.profiled_modality == path[1]:
            yield self.budget(args, build_dummy=True), self.budget(less, build_dummy=True)


_REQUIRED = "installed versions fill it in; other versions reject the related option without it"


def find_effects(
    engine_args: Mapping[str, Any],
    footprints: Footprints,
    task: Task | None = None,
    companions: Mapping[SettingPath, SettingPath] = MappingProxyType({}),
) -> tuple[list[Effect], dict[str, Any]]:
    """Return the effect of every setting, and the arguments without idle ones.

    An option that vLLM requires in its mapping is switched off with the mapping. A `companions`
    entry maps an option to another one that it stays with. Raises EngineError if vLLM rejects them.
    """
    start = footprints.budget(engine_args)
    if start.budget is None:
        raise VllmRefused(f"vLLM rejects this configuration: {start.refusal}")
    every: list[Effect] = []
    args = dict(engine_args)
    for path in list_settings(engine_args):
        if not any(effect.concerns(".".join(path)) for effect in every):
            path = _widen(args, path, footprints)
            less = remove_setting(args, path)
            for with_, bare in footprints.pairs(args, less, path):
                effect = compare_footprints(path, with_, bare)
                if effect.has_effect:
                    break
            if effect.outcome == "idle" and companions.get(path) in list_settings(args):
                effect = replace(effect, outcome="stated", words=_REQUIRED)
            every.append(effect)
            if effect.outcome == "idle":
                args = less
        if task is not None:
            task.advance()
    return every, args


def _widen(args: Mapping[str, Any], path: SettingPath, footprints: Footprints) -> SettingPath:
    """Return the smallest setting around `path` that vLLM allows to be absent."""
    if path[0] != "mm_processor_kwargs" or len(path) < 3:
        return path
    # The cheapest shape of each modality.
    shapes = {shape.modality: shape for shape in reversed(footprints.shapes)}.values()
    less = remove_setting(args, path)
    whole, bare = (footprints.items(each, shapes).items for each in (args, less))
    refused = any(bare[shape].refusal and not whole[shape].refusal for shape in shapes)
    if refused or footprints.budget(less).refusal:
        return _widen(args, path[:-1], footprints)
    return path


def drop_idle_settings(decision: Decision, budgets: BudgetSource, progress: Progress) -> Decision:
    """Return the decision with the effects of its settings, without the idle ones."""
    served = [modality for modality, count in decision.counts.items() if count.value]
    defaults = budgets.opened.serve_defaults
    shapes = probe_shapes(served, (decision.default_table, decision.table))
    footprints = Footprints(budgets.host, budgets.model_path, defaults, shapes)
    args = without_gpu_args(decision.engine_args, budgets.opened.device)
    companions: dict[SettingPath, SettingPath] = {
        p.knob.key_path(name): p.knob.key_path()
        for p in decision.chosen
        for name in p.knob.companions(p.value)
    }
    with progress.step("testing each setting", len(list_settings(args))) as task:
        every, useful = find_effects(args, footprints, task, companions)
    if useful == args:
        return replace(decision, effects=tuple(every))
    budget = budgets.budget_of(useful, build_dummy=True)
    together = list(describe_differences(Footprint(decision.budget), Footprint(budget)))
    if together:
        # Settings that are idle one by one but not together all stay.
        words = f"without it and the others that seemed idle: {'; '.join(together)}"
        changed = (
            replace(effect, outcome="moves", words=words) if effect.outcome == "idle" else effect
            for effect in every
        )
        return replace(decision, effects=tuple(changed))
    limit = useful.get("limit_mm_per_prompt", {})
    hints = {
        m: {a: value for a, value in hint.items() if isinstance(limit[m], dict) and a in limit[m]}
        for m, hint in decision.hints.items()
    }
    idle = {m: "vLLM profiles the same without it" for m, hint in hints.items() if not hint}
    return replace(
        decision,
        effects=tuple(every),
        engine_args={
            name: useful.get(name, value)
            for name, value in decision.engine_args.items()
            if name in useful or name not in args
        },
        budget=budget,
        setting=Setting(useful.get("mm_processor_kwargs", {}), useful.get("media_io_kwargs", {})),
        hints={m: hint for m, hint in hints.items() if hint},
        refused_hints={**decision.refused_hints, **idle},
    )
