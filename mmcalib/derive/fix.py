"""Memory fixes: which engine arguments each changes, how vLLM spells them, what it costs."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, get_args

from mmcalib.domain.nested import merged
from mmcalib.domain.shapes import Modality
from mmcalib.wording import flag

# What a fix costs the user, the least first.
Cost = Literal[
    "nothing", "KV cache", "requests", "speed", "quality", "most of the speed", "hardware"
]
COSTS: tuple[Cost, ...] = get_args(Cost)

# Severity after every length of the context, and after every cap.
LAST: Final = 4

_LIMIT = "limit_mm_per_prompt"


@dataclass(frozen=True, slots=True)
class Fix:
    """One change of a configuration, such as a shorter context.

    Fixes of one `knob` are its levels: a higher one holds all that a lower one brings, and takes
    its place. `severity` orders fixes of the same cost. `alone`: rehearsed on its own; `combines`:
    a plan may take it. `untried` is why it is not rehearsed at all. Items of the modality `shrinks`
    are made smaller by it.
    """

    name: str
    knob: str
    changes: Mapping[str, Any] = field(hash=False)
    cost: Cost
    price: str
    level: int = 0
    severity: int = 0
    alone: bool = True
    combines: bool = True
    untried: str = ""
    shrinks: Modality | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a configuration comes to. `refusal`: vLLM's reason why it cannot be."""

    reached: bool
    lacking_bytes: int
    refusal: str = field(default="")


def spelled(changes: Mapping[str, Any]) -> str:
    """Whole values of engine arguments as flags of `vllm serve`."""
    words = []
    for name, value in changes.items():
        if value is True:
            words.append(flag(name))
        elif isinstance(value, Mapping | list):
            words.append(f"{flag(name)} {shlex.quote(json.dumps(value))}")
        else:
            words.append(f"{flag(name)} {value}")
    return " ".join(words)


def effective(fixes: Iterable[Fix]) -> tuple[Fix, ...]:
    """Only the highest level of each knob, in the order given."""
    fixes = tuple(fixes)
    highest: dict[str, int] = {}
    for fix in fixes:
        highest[fix.knob] = max(fix.level, highest.get(fix.knob, fix.level))
    return tuple(fix for fix in fixes if fix.level == highest[fix.knob])


def changed(engine_args: Mapping[str, Any], fixes: Iterable[Fix]) -> dict[str, Any]:
    """The engine arguments that the fixes change, with what they become."""
    args = dict(engine_args)
    touched: dict[str, None] = {}
    for fix in effective(fixes):
        touched.update(dict.fromkeys(fix.changes))
        for name, value in fix.changes.items():
            if name == _LIMIT:
                args[name] = _limits(args.get(name), value)
            else:
                args = merged(args, {name: value})
    return {name: args[name] for name in touched}


def _limits(old: Any, new: Mapping[str, Any]) -> dict[str, Any]:
    """Of two limits of a modality the lower; options such as width beside them, but for those that
    are None in the new one.
    """
    limits = dict(old or {})
    for modality, value in new.items():
        both = [_options(limits[modality])] if modality in limits else []
        both.append(_options(value))
        counts = [options["count"] for options in both if "count" in options]
        options = {name: v for one in both for name, v in one.items() if name != "count"}
        options = {name: value for name, value in options.items() if value is not None}
        if counts and (not options or min(counts) == 0):
            limits[modality] = min(counts)
        else:
            limits[modality] = {**({"count": min(counts)} if counts else {}), **options}
    return limits


def _options(limit: Any) -> dict[str, Any]:
    return dict(limit) if isinstance(limit, Mapping) else {"count": limit}


def count_of(engine_args: Mapping[str, Any], modality: str) -> int | None:
    """The items of a modality that the arguments allow in a prompt; None where they do not say."""
    limits = engine_args.get(_LIMIT) or {}
    return _options(limits[modality]).get("count") if modality in limits else None
