"""What else could be decided, each on its own, to be served beside what was."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from mmcalib.derive.frontier import Point
from mmcalib.domain.media_option import Value
from mmcalib.domain.setting import merged
from mmcalib.workflows.decision.decision import Decision


@dataclass(frozen=True, slots=True)
class OtherChoice:
    """The calibrated configuration with one option of another value."""

    option: str
    value: Value
    engine_args: dict[str, Any]


def other_choices(decision: Decision, requests: int) -> list[OtherChoice]:
    """Half and double what a step may run, and of each knob the frontier's points that come nearest
    to half and to double the tokens of the largest item. What so many requests cannot tell from
    what was decided is left out.
    """
    tokens, seqs = decision.budget.max_num_batched_tokens, decision.budget.max_num_seqs
    tried = [("max_num_batched_tokens", tokens // 2), ("max_num_batched_tokens", tokens * 2)]
    if seqs // 2 < requests:
        tried.append(("max_num_seqs", seqs // 2))
    if seqs < requests:
        tried.append(("max_num_seqs", seqs * 2))
    found = [
        OtherChoice(option, value, {**decision.engine_args, option: value})
        for option, value in tried
        if value
    ]
    for chosen in decision.chosen:
        found += [_turned(decision, chosen, point) for point in _around(decision, chosen)]
    return found


def _around(decision: Decision, chosen: Point) -> Iterator[Point]:
    points = [
        explored.point
        for explored in decision.explored
        if explored.point.knob.name == chosen.knob.name
    ]
    smaller = [point for point in points if point.max_tokens < chosen.max_tokens]
    larger = [point for point in points if point.max_tokens > chosen.max_tokens]
    if smaller:
        yield min(smaller, key=lambda point: abs(point.max_tokens - chosen.max_tokens / 2))
    if larger:
        yield min(larger, key=lambda point: abs(point.max_tokens - chosen.max_tokens * 2))


def _turned(decision: Decision, chosen: Point, point: Point) -> OtherChoice:
    others = [one.setting for one in decision.chosen if one.knob.name != chosen.knob.name]
    setting = merged([*others, point.setting])
    replaced = decision.setting.engine_args
    rest = {name: value for name, value in decision.engine_args.items() if name not in replaced}
    return OtherChoice(point.knob.name, point.value, {**rest, **setting.engine_args})
