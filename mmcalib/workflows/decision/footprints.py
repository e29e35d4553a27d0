"""What configurations come to, asked of vLLM: budgets, and what witnesses cost (R8)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from mmcalib.derive.costs import CostTable
from mmcalib.derive.effects import Footprint, ItemOutcome, SettingPath, sizes
from mmcalib.domain.budget import Budget
from mmcalib.domain.rehearsed import Rehearsed
from mmcalib.domain.setting import Setting
from mmcalib.domain.shapes import MODALITIES, AudioShape, ImageShape, Shape, VideoShape
from mmcalib.engine.host import EngineHost
from mmcalib.engine.messages import AskBudget, Blank, Measure
from mmcalib.errors import VllmRefused

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
    """Asks vLLM what configurations come to, each question once.

    `serve_defaults` are what the serving machine would choose where a configuration says nothing.
    The host must have the model open. `rehearse` gives memory too; without it bytes are those of
    the items' tensors.
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
                budget = self.host.ask(request, "switching a setting off").budget
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
            blank = Blank(shape)
            try:
                (answer,) = self.host.measure(Measure(setting, (blank,)), "switching a setting off")
            except VllmRefused as error:
                self._items[key] = ItemOutcome(refusal=error.message)
            else:
                cost = answer.cost
                self._items[key] = (
                    ItemOutcome(cost.tokens, cost.tensor_bytes)
                    if cost
                    else ItemOutcome(refusal=answer.refusal)
                )
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
