"""Correct refused flags and arguments of `vllm serve`, and open models in the child."""

from __future__ import annotations

import contextlib
import difflib
import itertools
import json
import re
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from mmcalib.domain.model import ModelInfo
from mmcalib.engine.host import EngineHost
from mmcalib.engine.messages import OpenModel
from mmcalib.errors import EngineError, ModelError, NotMultimodal, UsageError, VllmRefused
from mmcalib.models import gpus
from mmcalib.models.gpus import Gpu
from mmcalib.models.resolve import ResolvedModel
from mmcalib.progress import Progress
from mmcalib.releases.constants import RetiredKnob, find_retired, find_retired_arguments
from mmcalib.text import one_line

# Parts of pydantic's and argparse's errors that do not help a user.
_ADDRESS = re.compile(r" For further information visit https?://\S+")
_FUNCTION = re.compile(r"<function loads at 0x[0-9a-f]+>")
# A long one is cut off before its end.
_ONE_ERROR = re.compile(
    r"1 validation error for \w+ Value error, (?P<words>.+?)(?: \[type=value_error|\Z)"
)
CHANGE_SETTING: Final = "change the setting that it names"


def refusal_text(error: EngineError) -> str:
    """Return vLLM's reason without what mmcalib was doing."""
    reason = _FUNCTION.sub("JSON", _ADDRESS.sub("", error.reason))
    only = _ONE_ERROR.match(reason)
    return only["words"] if only else reason


@contextlib.contextmanager
def add_config_hints(config: Path | None, flags: Sequence[str], gpu: Gpu) -> Iterator[None]:
    """Add a hint to errors of vLLM about this file or these flags of `vllm serve` on this GPU."""
    try:
        yield
    except VllmRefused as error:
        if config is not None:
            file = shlex.quote(str(config))
            error.hint = error.hint or f"mmcalib validate --config {file} {gpu.flags}"
        elif flags:
            error.hint = error.hint or f"change what vLLM rejects in -- {shlex.join(flags)}"
        raise


_UNKNOWN: Final = "unrecognized arguments: "
_ARGUMENT: Final = re.compile(r"argument (?:-\w+/)*--(?P<option>[\w-]+)")
# A shell may remove JSON's quotes or braces; older releases accepted image=2,video=1.
_NO_JSON: Final = "cannot be converted to JSON"


def rejected_flags_error(
    said: str, flags: Sequence[str], options: Collection[str] = ()
) -> UsageError | None:
    """Return the error for flags that vLLM's parser rejects by `said`; `options` have no dashes."""
    names = {_name(word) for word in flags}
    unknown: list[str] = []
    if said.startswith(_UNKNOWN):
        unknown = [word for word in said.removeprefix(_UNKNOWN).split() if _name(word) in names]
    argument = _ARGUMENT.match(said)
    if not unknown and (argument is None or f"--{argument['option']}" not in names):
        return None
    replacements = list(_replacements(unknown, options))
    if argument and _NO_JSON in said and (value := _repair_json(f"--{argument['option']}", flags)):
        replacements = [f"--{argument['option']} {shlex.quote(json.dumps(value))}"]
    return UsageError(
        f"vLLM rejects these flags: {one_line(said)}",
        hint="; ".join(replacements) or "vllm serve --help=all",
    )


def _repair_json(option: str, flags: Sequence[str]) -> Any:
    """Parse an option's JSON after a shell removed its quotes; None if unclear."""
    at = next(at for at, word in enumerate(flags) if _name(word) == option)
    values = itertools.takewhile(lambda word: not word.startswith("-"), flags[at + 1 :])
    words = [flags[at].partition("=")[2], *values]
    joined = ",".join(word.strip("'").strip(",") for word in words if word)
    # YAML needs no quotes, but a blank after each colon.
    text = re.sub(r"[:=]\s*", ": ", joined)
    with contextlib.suppress(yaml.YAMLError):
        return yaml.safe_load(text if text[:1] == "{" else f"{{{text}}}") or None


def reject_unknown_arguments(engine_args: Iterable[str], arguments: Collection[str]) -> None:
    for name in engine_args:
        if name in arguments:
            continue
        near = difflib.get_close_matches(name, arguments, n=1)
        hint = near[0] if near else "vllm serve --help=all (write its options with underscores)"
        if knob := next(find_retired_arguments({name: None}), None):
            hint = _successor(knob)
        raise UsageError(f"engine_args: the installed vLLM has no argument {name}", hint=hint)


def _name(word: str) -> str:
    """Return a flag as vLLM's parser reads it, without its value; other words unchanged."""
    if not word.startswith("--"):
        return word
    return word.partition("=")[0].partition(".")[0].replace("_", "-")


def _replacements(unknown: Sequence[str], options: Collection[str]) -> Iterator[str]:
    for name in filter(lambda name: name.startswith("--"), map(_name, unknown)):
        if knob := next(find_retired(name), None):
            yield _successor(knob)
        elif near := difflib.get_close_matches(name[2:], options, n=1):
            yield f"--{near[0]} for {name}"


def _successor(knob: RetiredKnob) -> str:
    removed = f"removed in vLLM {knob.absent_in}"
    return f"{knob.today} for {knob.name}" if knob.today else f"leave out {knob.name}, {removed}"


# These need a GPU. Neither tokens nor the encoder budget depend on them.
GPU_ONLY = (
    *("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "device_ids"),
    # vLLM checks most of these against the number of GPUs.
    *("prefill_context_parallel_size", "decode_context_parallel_size", "dcp_q_replicate"),
    *("dcp_kv_cache_interleave_size", "cp_kv_cache_interleave_size", "nnodes", "node_rank"),
    *("data_parallel_size_local", "data_parallel_rank", "data_parallel_start_rank"),
    *("data_parallel_external_lb", "data_parallel_hybrid_lb", "all2all_backend", "enable_dbo"),
    *("data_parallel_multi_port_external_lb", "ubatch_size", "enable_eplb", "eplb_config"),
    *("enable_elastic_ep", "enable_hc_sp", "enable_batch_sharded_sampling", "numa_bind"),
    *("numa_bind_nodes", "numa_bind_cpus", "ray_workers_use_nsight"),
    *("enable_sleep_mode", "enable_cumem_allocator"),
    *("distributed_executor_backend", "enable_expert_parallel", "mm_encoder_tp_mode"),
    *("gpu_memory_utilization", "kv_cache_memory_bytes", "kv_cache_dtype", "cpu_offload_gb"),
    *("attention_backend", "mm_encoder_attn_backend", "mm_processor_device"),
    *("quantization", "load_format"),
)

# A model may not load without these, which change no memory.
_LOADING = ("trust_remote_code", "config_format", "tokenizer", "tokenizer_mode")


def loading_args(engine_args: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments that vLLM's defaults are judged with, so that the model loads."""
    return {name: value for name, value in engine_args.items() if name in _LOADING}


def without_gpu_args(engine_args: Mapping[str, Any], device: str) -> dict[str, Any]:
    """Return the arguments that work on this machine; `device` is vLLM's name for it."""
    left_out = GPU_ONLY if device == "cpu" else ()
    return {name: value for name, value in engine_args.items() if name not in left_out}


def is_serving_gpu(device: str, gpu: Gpu | None) -> bool:
    """Return True if this machine's device is the `gpu` that will serve, or may be it."""
    if device == "cpu":
        return False
    return gpu is None or not gpus.has_gpu() or gpu.torch_name == gpus.detect_gpu().torch_name


LIST_MODELS_HINT = "mmcalib list models (multimodal ones)"


def configured_context(engine_args: Mapping[str, Any]) -> int | None:
    """Return the configured context in tokens; None if vLLM chooses it (unset or -1)."""
    tokens = engine_args.get("max_model_len")
    return tokens if isinstance(tokens, int) and tokens > 0 else None


def open_model(
    host: EngineHost,
    resolved: ResolvedModel,
    progress: Progress,
    *,
    context_tokens: int | None = None,
    engine_args: Mapping[str, Any] | None = None,
    text_only: ModelError | None = None,
) -> ModelInfo:
    """Open the model in the child. Raises EngineError, or `text_only` for a text-only model."""
    request = OpenModel(resolved.path, context_tokens, engine_args=dict(engine_args or {}))
    with progress.step("opening the model in vLLM"):
        try:
            return host.ask(request, "opening the model")
        except NotMultimodal:
            raise (text_only or text_only_error(resolved)) from None


def text_only_error(
    resolved: ResolvedModel, so: str = "", hint: str = f"{LIST_MODELS_HINT}, or --model another"
) -> ModelError:
    """Return the error for a text-only model; `so` ends its message."""
    return ModelError(f"{resolved.id} takes no images, video or audio{so}", hint=hint)
