"""Where a stand-in takes the place of something: one way to do it, which notices a moved target."""

from __future__ import annotations

import importlib
from typing import Any

from mmcalib.releases.release import TargetMoved
from mmcalib.releases.targets import Target


def find(target: str) -> tuple[Any, str]:
    """The object that holds the last name of a dotted target, and that name.

    Raises TargetMoved when it is not there.
    """
    parts = target.split(".")
    for cut in range(len(parts) - 1, 0, -1):
        try:
            holder: Any = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for part in parts[cut:-1]:
            holder = getattr(holder, part, None)
        if holder is None or not hasattr(holder, parts[-1]):
            break
        return holder, parts[-1]
    raise TargetMoved(target)


def replace(target: str | Target, value: Any) -> Any:
    """Put `value` where the dotted target is, and return what was there.

    A release may lack some of the targets: nothing is replaced then, and None returned.
    """
    if isinstance(target, str):
        target = Target(target)
    try:
        holder, name = find(target.name)
    except TargetMoved:
        if not target.may_be_missing:
            raise
        return None
    before = getattr(holder, name)
    setattr(holder, name, value)
    return before
