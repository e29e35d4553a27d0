"""The policy that options make, and the options that a policy says."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from mmcalib.derive.policy import Policy
from mmcalib.errors import UsageError
from mmcalib.options.run import RunOptions
from mmcalib.sizes import size_bytes

_RULES = {rule.name for rule in fields(Policy)} & set(RunOptions.__dataclass_fields__)


def policy_of(options: RunOptions) -> Policy:
    """With the defaults of the policy where the options leave a choice to it."""
    said = {name: getattr(options, name) for name in _RULES}
    if options.ram_budget is not None:
        said["ram_budget_bytes"] = size_bytes(options.ram_budget)
    return Policy(**{name: value for name, value in said.items() if value is not None})


def policy_from(given: Policy | Mapping[str, Any] | None) -> Policy:
    """As the library takes one. Raises UsageError for a key that no policy has, and TypeError for
    what is neither.
    """
    if given is None or isinstance(given, Policy):
        return given or Policy()
    if not isinstance(given, Mapping):
        raise TypeError(f"policy is a Policy or a dict of its fields, not {type(given).__name__}")
    known = [rule.name for rule in fields(Policy)]
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(str(name), known, n=1)
            meant = near[0] if near else f"one of {', '.join(known)}"
            raise UsageError(f"policy: a policy has no {name!r}", hint=meant)
    return Policy(**given)


def said_by(policy: Policy) -> dict[str, Any]:
    """What differs from the defaults, by the names of the options."""
    default = Policy()
    said = {name: getattr(policy, name) for name in _RULES}
    return {name: value for name, value in said.items() if value != getattr(default, name)}
