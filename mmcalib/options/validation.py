"""A policy from options and back; the arguments of vLLM that a run derives itself."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Final

from mmcalib.derive.policy import Policy
from mmcalib.errors import UsageError
from mmcalib.options.run import RunOptions
from mmcalib.text import flag, size_bytes

_RULES = {rule.name for rule in fields(Policy)} & set(RunOptions.__dataclass_fields__)


def policy_of(options: RunOptions) -> Policy:
    """With the defaults of the policy where the options leave a choice to it."""
    said = {name: getattr(options, name) for name in _RULES}
    if options.ram_budget is not None:
        said["ram_budget_bytes"] = size_bytes(options.ram_budget)
    return Policy(**{name: value for name, value in said.items() if value is not None})


def policy_from(given: Policy | Mapping[str, Any] | None) -> Policy:
    """As the library takes one. Raises UsageError for an unknown key, TypeError for no mapping."""
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


def options_of_policy(policy: Policy) -> dict[str, Any]:
    """What differs from the defaults, by the names of the options."""
    default = Policy()
    said = {name: getattr(policy, name) for name in _RULES}
    return {name: value for name, value in said.items() if value != getattr(default, name)}


# What a calibration derives or asks for itself, by vLLM's name, and how it is told.
_OWN: Final = {
    "model": "--model MODEL",
    "limit_mm_per_prompt": "--count image=4",
    "mm_processor_kwargs": "--max-tokens-per-item N; mmcalib validate judges a file of your own",
    "mm_processor_cache_gb": "--ram-budget 8GiB",
    "media_io_kwargs": """--media-io-kwargs '{"video": {"fps": 1}}'""",
    "max_model_len": "--max-model-len 32768",
    "max_num_batched_tokens": "--max-num-batched-tokens 8192",
    "max_num_seqs": "Policy(max_num_seqs=64)",
    "gpu_memory_utilization": "Policy(gpu_memory_utilization=0.9)",
}
DECIDED: Final = frozenset(_OWN) - {"model"}
# Those of the user's configuration hold, unless an option says otherwise; the others are compared.
TAKEN: Final = ("max_model_len", "max_num_seqs", "gpu_memory_utilization", "media_io_kwargs")
# What `--pin-kv-cache` writes.
_PINNED: Final = ("kv_cache_memory_bytes", "compilation_config", "cudagraph_capture_sizes")


def refuse_own(engine_args: Mapping[str, Any], *, pinned: bool) -> None:
    """Raise UsageError for what a calibration decides itself, with the option that steers it."""
    for name in engine_args:
        if name in _OWN:
            raise UsageError(
                f"{flag(name)} is not one of vLLM's arguments that run passes on: it is derived, "
                "or an option of mmcalib run itself",
                hint=_OWN[name],
            )
        if pinned and name in _PINNED:
            raise UsageError(
                f"{flag(name)} and --pin-kv-cache are one or the other",
                hint="leave one of them out",
            )
