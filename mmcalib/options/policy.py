"""The policy that options make, and the options that a policy says."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from mmcalib.derive.policy import Policy
from mmcalib.options.run import RunOptions
from mmcalib.sizes import size_bytes

_RULES = {rule.name for rule in fields(Policy)} & set(RunOptions.__dataclass_fields__)


def policy_of(options: RunOptions) -> Policy:
    """With the defaults of the policy where the options leave a choice to it."""
    said = {name: getattr(options, name) for name in _RULES}
    if options.ram_budget is not None:
        said["ram_budget_bytes"] = size_bytes(options.ram_budget)
    return Policy(**{name: value for name, value in said.items() if value is not None})


def said_by(policy: Policy) -> dict[str, Any]:
    """What differs from the defaults, by the names of the options."""
    default = Policy()
    said = {name: getattr(policy, name) for name in _RULES}
    return {name: value for name, value in said.items() if value != getattr(default, name)}
