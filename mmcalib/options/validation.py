"""Converts options to a policy and back; rejects vLLM arguments that a run derives itself."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Final

from mmcalib.derive.policy import Policy
from mmcalib.errors import UsageError
from mmcalib.options.run import RunOptions
from mmcalib.text import flag, size_bytes

_POLICY_OPTIONS = {rule.name for rule in fields(Policy)} & set(RunOptions.__dataclass_fields__)


def build_policy(options: RunOptions) -> Policy:
    """Return the policy of these options; an option of None takes the policy's default."""
    values = {name: getattr(options, name) for name in _POLICY_OPTIONS}
    if options.ram_budget is not None:
        values["ram_budget_bytes"] = size_bytes(options.ram_budget)
    return Policy(**{name: value for name, value in values.items() if value is not None})


def read_policy(given: Policy | Mapping[str, Any] | None) -> Policy:
    """Return the library's `policy` argument as a Policy. Raises UsageError for an unknown key."""
    if given is None or isinstance(given, Policy):
        return given or Policy()
    if not isinstance(given, Mapping):
        raise TypeError(f"policy is a Policy or a dict of its fields, not {type(given).__name__}")
    known = [rule.name for rule in fields(Policy)]
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(str(name), known, n=1)
            meant = near[0] if near else f"one of {', '.join(known)}"
            raise UsageError(f"policy: unknown key {name!r}", hint=meant)
    return Policy(**given)


def policy_options(policy: Policy) -> dict[str, Any]:
    """Return the values that differ from the defaults, by option name."""
    default = Policy()
    values = {name: getattr(policy, name) for name in _POLICY_OPTIONS}
    return {name: value for name, value in values.items() if value != getattr(default, name)}


# vLLM arguments that a calibration sets itself, and the option that steers each.
_DERIVED: Final = {
    "model": "--model MODEL",
    "limit_mm_per_prompt": "--count image=4",
    "mm_processor_kwargs": "--max-tokens-per-item N; mmcalib validate checks a file of your own",
    "mm_processor_cache_gb": "--ram-budget 8GiB",
    "media_io_kwargs": """--media-io-kwargs '{"video": {"fps": 1}}'""",
    "max_model_len": "--max-model-len 32768",
    "max_num_batched_tokens": "--max-num-batched-tokens 8192",
    "max_num_seqs": "Policy(max_num_seqs=64)",
    "gpu_memory_utilization": "Policy(gpu_memory_utilization=0.9)",
}
DERIVED_ARGUMENTS: Final = frozenset(_DERIVED) - {"model"}
# A run keeps these from the user's configuration unless an option overrides them.
KEPT_ARGUMENTS: Final = (
    "max_model_len",
    "max_num_seqs",
    "gpu_memory_utilization",
    "media_io_kwargs",
)
# `--pin-kv-cache` sets these.
_PINNED: Final = ("kv_cache_memory_bytes", "compilation_config", "cudagraph_capture_sizes")


def reject_derived_flags(engine_args: Mapping[str, Any], *, pinned: bool) -> None:
    """Raise UsageError for arguments that a calibration sets itself, with the option to use."""
    for name in engine_args:
        if name in _DERIVED:
            raise UsageError(
                f"mmcalib run sets {flag(name)} itself and does not pass it on to vLLM",
                hint=_DERIVED[name],
            )
        if pinned and name in _PINNED:
            raise UsageError(
                f"{flag(name)} and --pin-kv-cache exclude each other", hint="remove one of them"
            )
