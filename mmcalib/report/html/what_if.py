"""What the page's script needs to say what another setting would do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from mmcalib import wording
from mmcalib.result.calibration import CalibrationDocument
from mmcalib.result.what_if import WhatIf, WhatIfGroup


@dataclass(frozen=True, slots=True)
class Slider:
    """One option, whose stops are its values, ascending, each with the state of the group that it
    is; `chosen` is the place of the chosen one.
    """

    name: str
    group: int
    values: tuple[str, ...]
    states: tuple[int, ...]
    chosen: int


@dataclass(frozen=True, slots=True)
class WhatIfForm:
    """`data` is for the script, `contexts` and `context` are stops of a slider too."""

    sliders: tuple[Slider, ...]
    contexts: tuple[str, ...]
    context: int
    gpu: str
    data: dict[str, Any]


def trial(calibration: CalibrationDocument) -> WhatIfForm | None:
    """None where nothing else was looked at."""
    found = calibration.what_if
    length = calibration.engine_config.get("max_model_len")
    if found is None or not found.pools or length not in found.contexts:
        return None
    return WhatIfForm(
        tuple(_sliders(found)),
        tuple(map(wording.number, found.contexts)),
        found.contexts.index(length),
        calibration.memory.calibrated.gpu or "",
        _data(calibration, found),
    )


def _sliders(found: WhatIf) -> Iterator[Slider]:
    for place, group in enumerate(found.groups):
        for knob, chosen in group.chosen.items():
            stops = sorted([(chosen, 0), *_others(group, knob)])
            values = tuple(wording.number(value) for value, _ in stops)
            states = tuple(state for _, state in stops)
            yield Slider(knob, place, values, states, states.index(0))


def _others(group: WhatIfGroup, knob: str) -> Iterator[tuple[float, int]]:
    for number, state in enumerate(group.states):
        if state.knob == knob and state.value is not None:
            yield state.value, number


def _data(calibration: CalibrationDocument, found: WhatIf) -> dict[str, Any]:
    """By the places of states and of the context, joined, what is known there."""
    contexts = {length: place for place, length in enumerate(found.contexts)}

    def at(places: list[int], max_model_len: int) -> str:
        return ",".join(map(str, (*places, contexts[max_model_len])))

    return {
        "groups": [
            {
                "items": group.items,
                "states": [[s.items_downscaled, s.budget_of, s.setting] for s in group.states],
            }
            for group in found.groups
        ],
        "contexts": found.contexts,
        "requests": found.requests,
        "pools": {
            at(p.places, p.max_model_len): [
                p.kv_cache_bytes,
                p.off_bytes,
                p.kv_cache_tokens,
                p.max_concurrency,
                p.max_num_batched_tokens,
                p.label,
            ]
            for p in found.pools
            if p.max_model_len in contexts
        },
        "rejected": None
        if found.rejected is None
        else {
            at(r.places, r.max_model_len): r.requests
            for r in found.rejected
            if r.max_model_len in contexts
        },
        "config": list(calibration.engine_config.items()),
        "limits": found.limit_mm_per_prompt,
        "setting": found.setting,
        "asked": bool(calibration.corpus.prompts),
    }
