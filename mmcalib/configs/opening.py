"""Open a configuration: find its model, let vLLM parse it, and open the model under it.

`run`, `validate`, `plan`, `rehearse` and `scan` go this way, each as far as it needs. What vLLM
rejects on the way gets a correction.
"""

from __future__ import annotations

import contextlib
import difflib
import itertools
import json
import os
import re
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import yaml

from mmcalib.configs.commands import argument_of
from mmcalib.configs.read import WrittenConfiguration
from mmcalib.domain.model import ModelInfo
from mmcalib.engine.host import EngineHost
from mmcalib.engine.messages import KnownOptions, ListServeOptions, OpenModel, ServeConfig
from mmcalib.errors import ModelError, NotMultimodal, UsageError, VllmRefused
from mmcalib.models import gpus
from mmcalib.models.resolve import ResolvedModel, cache_dir, resolve
from mmcalib.progress import Progress
from mmcalib.releases.constants import RETIRED_BY_ARGUMENT
from mmcalib.text import flag, one_line, serve_option


@dataclass(frozen=True, slots=True)
class FoundConfiguration:
    """A configuration as written, its model, and what mmcalib says of it."""

    written: WrittenConfiguration
    resolved: ResolvedModel
    notes: tuple[str, ...]


def find_configuration(
    written: WrittenConfiguration,
    progress: Progress,
    log: tuple[str | None, str | None] | None = None,
) -> FoundConfiguration:
    """Say what mmcalib does not use, and find the model, before vLLM starts. A `log` has the model
    of a configuration without one, and its architecture. Raises UsageError and ModelError.
    """
    notes = tuple(written.notes(os.environ))
    for note in notes:
        progress.note(note)
    logged, architecture = log or (None, None)
    name = written.model_name or logged
    if not name:
        raise written.no_model_error(", and the log names none" if log else "")
    is_logged = name == logged
    try:
        with progress.step("finding the model"):
            its = architecture if is_logged else None
            resolved = resolve(name, cache_dir=cache_dir(), architecture=its)
    except ModelError as error:
        what = "cannot find the log's model: " if is_logged else ""
        raise ModelError(f"{what}{error.message}", hint=error.hint) from None
    return FoundConfiguration(written, resolved, notes)


def list_options(host: EngineHost) -> KnownOptions:
    """List the options of `vllm serve` and the arguments of vLLM's engine."""
    return host.ask(ListServeOptions(), "listing the options of vllm serve")


def try_to_parse(host: EngineHost, written: WrittenConfiguration) -> ServeConfig:
    """Let vLLM parse it. Raises VllmRefused if vLLM rejects it, UsageError if it is unsafe."""
    parsed = host.ask(written.parse_request, "reading the configuration")
    return reject_unsafe_settings(parsed, written.source)


def parse_configuration(host: EngineHost, written: WrittenConfiguration) -> ServeConfig:
    """Let vLLM parse it, with the values of all arguments. Raises UsageError if it is rejected."""
    try:
        return try_to_parse(host, written)
    except VllmRefused as refused:
        why, file, options = refused.reason, written.config, list_options(host).arguments
        if flags_error := rejected_flags_error(why, written.every_flag, options):
            raise flags_error from refused
        validate = file and written.command("validate")
        raise UsageError(
            f"vLLM rejects {file or 'these flags'}: {one_line(why)}",
            hint=validate or refused.hint or "vllm serve --help=all lists them",
        ) from refused


def reject_unsafe_settings(parsed: ServeConfig, path: Path | None) -> ServeConfig:
    """Return it unchanged. Raises UsageError if the file could make vLLM run or write something."""
    if parsed.unsafe_settings:
        name = parsed.unsafe_settings[0].partition(".")[0]
        raise UsageError(
            f"--config {path} has settings that make vLLM import, run, write or connect: "
            f"{', '.join(parsed.unsafe_settings)}",
            hint="remove them, or pass them yourself as flags: mmcalib ... -- "
            + shlex.join(serve_option(name, parsed.values[name])),
        )
    return parsed


@contextlib.contextmanager
def add_config_hints(written: WrittenConfiguration, gpu: gpus.Gpu) -> Iterator[None]:
    """Add what to type next to vLLM's errors about this configuration on this GPU."""
    try:
        yield
    except VllmRefused as error:
        if written.source is not None:
            error.hint = error.hint or written.command("validate", gpu)
        elif written.flags:
            error.hint = error.hint or f"change what vLLM rejects in -- {shlex.join(written.flags)}"
        raise


# A model may not load without these, which change no memory.
_LOADING = ("trust_remote_code", "config_format", "tokenizer", "tokenizer_mode")


def loading_args(engine_args: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments that vLLM's defaults are judged with, so that the model loads."""
    return {name: value for name, value in engine_args.items() if name in _LOADING}


def configured_context(engine_args: Mapping[str, Any]) -> int | None:
    """Return the configured context in tokens; None if vLLM chooses it (unset or -1)."""
    tokens = engine_args.get("max_model_len")
    return tokens if isinstance(tokens, int) and tokens > 0 else None


def open_model(
    host: EngineHost,
    resolved: ResolvedModel,
    progress: Progress,
    engine_args: Mapping[str, Any] = MappingProxyType({}),
    *,
    context_tokens: int | None = None,
    so: str = "",
) -> ModelInfo:
    """Open the model in the child. Raises EngineError, or ModelError for a text-only model."""
    request = OpenModel(resolved.path, context_tokens, engine_args=dict(engine_args))
    with progress.step("opening the model in vLLM"):
        try:
            return host.ask(request, "opening the model")
        except NotMultimodal:
            raise text_only_error(resolved, so) from None


def text_only_error(resolved: ResolvedModel, so: str = "") -> ModelError:
    """Return the error for a text-only model; `so` ends its message."""
    hint = "mmcalib list models (multimodal ones), or --model another"
    return ModelError(f"{resolved.id} takes no images, video or audio{so}", hint=hint)


_UNKNOWN: Final = "unrecognized arguments: "
_ARGUMENT: Final = re.compile(r"argument (?:-\w+/)*--(?P<option>[\w-]+)")
# A shell may remove JSON's quotes or braces; older releases accepted image=2,video=1.
_NO_JSON: Final = "cannot be converted to JSON"


def rejected_flags_error(
    said: str, flags: Sequence[str], options: Collection[str] = ()
) -> UsageError | None:
    """Return the error for flags that vLLM's parser rejects by `said`; `options` have no dashes."""
    names = {*map(argument_of, flags)}
    unknown = [word for word in said.partition(_UNKNOWN)[2].split() if argument_of(word) in names]
    argument = _ARGUMENT.match(said)
    if not unknown and (argument is None or argument_of(argument["option"]) not in names):
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
    at = next(at for at, word in enumerate(flags) if argument_of(word) == argument_of(option))
    values = itertools.takewhile(lambda word: not word.startswith("-"), flags[at + 1 :])
    words = [flags[at].partition("=")[2], *values]
    # YAML needs no quotes, but a blank after each colon.
    text = re.sub(r"[:=]\s*", ": ", ",".join(word.strip("'").strip(",") for word in words if word))
    with contextlib.suppress(yaml.YAMLError):
        return yaml.safe_load(text if text[:1] == "{" else f"{{{text}}}") or None


def reject_unknown_arguments(engine_args: Iterable[str], arguments: Collection[str]) -> None:
    for name in engine_args:
        if name not in arguments:
            near = "".join(difflib.get_close_matches(name, arguments, n=1))
            every = "vllm serve --help=all (write its options with underscores)"
            said = f"engine_args: the installed vLLM has no argument {name}"
            raise UsageError(said, hint=_successor(name) or near or every)


def _replacements(unknown: Sequence[str], options: Collection[str]) -> Iterator[str]:
    for name in (argument_of(word) for word in unknown if word.startswith("--")):
        if successor := _successor(name):
            yield successor
        elif near := difflib.get_close_matches(flag(name)[2:], options, n=1):
            yield f"--{near[0]} for {flag(name)}"


def _successor(argument: str) -> str:
    if (knob := RETIRED_BY_ARGUMENT.get(argument)) is None:
        return ""
    removed = f"removed in vLLM {knob.absent_in}"
    return f"{knob.today} for {knob.name}" if knob.today else f"leave out {knob.name}, {removed}"


# These need a GPU. Neither tokens nor the encoder budget depend on them, nor on any of parallelism.
GPU_ONLY = (
    # vLLM checks most of these against the number of GPUs.
    *("device_ids", "dcp_q_replicate", "dcp_kv_cache_interleave_size", "nnodes", "node_rank"),
    *("cp_kv_cache_interleave_size", "all2all_backend", "enable_dbo", "ubatch_size", "enable_eplb"),
    *("eplb_config", "enable_elastic_ep", "enable_hc_sp", "numa_bind", "numa_bind_nodes"),
    *("numa_bind_cpus", "enable_batch_sharded_sampling", "ray_workers_use_nsight"),
    *("mm_encoder_tp_mode", "enable_sleep_mode", "enable_cumem_allocator"),
    *("distributed_executor_backend", "gpu_memory_utilization", "kv_cache_memory_bytes"),
    *("kv_cache_dtype", "cpu_offload_gb", "attention_backend", "mm_encoder_attn_backend"),
    *("mm_processor_device", "quantization", "load_format"),
)


def without_gpu_args(engine_args: Mapping[str, Any], device: str) -> dict[str, Any]:
    """Return the arguments that work on this machine; `device` is vLLM's name for it."""
    kept = [name for name in engine_args if name not in GPU_ONLY and "_parallel" not in name]
    return {name: engine_args[name] for name in (kept if device == "cpu" else engine_args)}


def is_serving_gpu(device: str, gpu: gpus.Gpu | None) -> bool:
    """Return True if this machine's device is the `gpu` that will serve, or may be it."""
    if device == "cpu":
        return False
    return gpu is None or not gpus.has_gpu() or gpu.torch_name == gpus.detect_gpu().torch_name
