"""Settings of vLLM (0.32) that reach further than numbers do: they import or run what they name,
write where they say, or connect to whom they say.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

# Engine arguments that are nothing else. vllm/config/*.py, and for the logging settings
# vllm/logger.py, whose files may name any callable.
_WHOLE = frozenset(
    {
        *("trust_remote_code", "worker_cls", "worker_extension_cls", "scheduler_cls"),
        *("logits_processors", "io_processor_plugin", "reasoning_parser_plugin"),
        *("model_class_overrides", "logging_config", "log_config_file", "ec_manager_config"),
        *("kv_transfer_config", "ec_transfer_config", "kv_events_config", "otlp_traces_endpoint"),
        *("weight_transfer_config", "profiler_config", "mm_encoder_fp8_scale_save_path"),
        *("master_addr", "data_parallel_address"),
    }
)
# Keys at any depth below the others. `backend` of a compilation is a function by its name.
_KEYS = re.compile(
    r"trust_remote_code|inductor_passes|backend|custom_class|auto_map|logits_processors"
    r"|.*(?:_cls|_plugin|_class|module_path|_passes|_log_dir|_dump_path|_debug_dir)"
)
# The usual ones are vLLM's own, by short names; others are classes by their names.
_NAMES = {"distributed_executor_backend": re.compile(r"(?:ray|mp|uni|external_launcher)?")}
_OWN_BACKENDS = ("", "eager", "inductor", "openxla", "cudagraphs", "auto", "xgrammar", "guidance")
# A method of speculation that imports what is said to be its model.
_SPECULATION = "custom_class"


def reaching(
    arguments: Mapping[str, Any], given: Mapping[str, Any], names: tuple[str, ...]
) -> Iterator[str]:
    """Which of these `names` reach further in `arguments`, without what is the same in `given`."""
    for name in names:
        value = arguments.get(name)
        if not value or value == given.get(name):
            continue
        short = _NAMES.get(name)
        if name in _WHOLE or (short is not None and not short.fullmatch(str(value))):
            yield name
        else:
            yield from (f"{name}.{path}" for path in _below(value, given.get(name)))


def _below(value: Any, given: Any) -> Iterator[str]:
    """The dotted names of what reaches further in a mapping."""
    if not isinstance(value, Mapping):
        return
    before = given if isinstance(given, Mapping) else {}
    for key, inner in value.items():
        if not inner or inner == before.get(key):
            continue
        own = str(key) == "backend" and inner in _OWN_BACKENDS
        if (_KEYS.fullmatch(str(key)) and not own) or inner == _SPECULATION:
            yield str(key)
        else:
            yield from (f"{key}.{path}" for path in _below(inner, before.get(key)))
