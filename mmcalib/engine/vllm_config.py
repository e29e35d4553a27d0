"""Flags and files of `vllm serve`: the model they name, what to type instead; open a model."""

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

from mmcalib.derive.retired import RetiredKnob, retired_among, retired_in
from mmcalib.domain.model import ModelInfo
from mmcalib.engine.host import EngineHost
from mmcalib.engine.messages import OpenModel
from mmcalib.errors import EngineError, ModelError, NotMultimodal, UsageError, VllmRefused
from mmcalib.models import gpus
from mmcalib.models.gpus import Gpu
from mmcalib.models.resolve import ResolvedModel
from mmcalib.progress import Progress
from mmcalib.text import one_line

# What pydantic and argparse add, and no reader needs.
_ADDRESS = re.compile(r" For further information visit https?://\S+")
_FUNCTION = re.compile(r"<function loads at 0x[0-9a-f]+>")
_ONE_ERROR = re.compile(
    r"1 validation error for \w+ Value error, (?P<words>.+?) \[type=value_error"
)


# Of `ModelConfig._verify_quantization` (vllm/config/model.py, 0.32), before all that there are.
_NO_METHOD = re.compile(r"Unknown quantization method: (\w+)")


def refusal(error: EngineError) -> str:
    """Why vLLM refuses, without what it was doing."""
    said = _FUNCTION.sub("JSON", _ADDRESS.sub("", error.reason))
    only = _ONE_ERROR.match(said)
    return only["words"] if only else said


@contextlib.contextmanager
def saying_what_to_change(config: Path | None, flags: Sequence[str]) -> Iterator[None]:
    """Let a refusal of this file or of these flags of `vllm serve` say what to do about it."""
    try:
        yield
    except VllmRefused as error:
        if method := _NO_METHOD.search(error.reason):
            raise UsageError(
                f"the installed vLLM has no quantization method {method[1]}",
                hint="--quantization fp8, or a checkpoint that was quantized, such as AWQ",
            ) from error
        if config is not None:
            file = shlex.quote(str(config))
            error.hint = error.hint or f"mmcalib validate --config {file} says what to change in it"
        elif flags:
            error.hint = error.hint or f"change what vLLM names in -- {shlex.join(flags)}"
        raise


_UNKNOWN: Final = "unrecognized arguments: "
_ARGUMENT: Final = re.compile(r"argument (?:-\w+/)*--(?P<option>[\w-]+)")
# What JSON is made of when a shell has taken its quotes, or its braces too; older releases spelled
# limits as image=2,video=1.
_NO_JSON: Final = "cannot be converted to JSON"
_SIGNS: Final = re.compile(r"[{}\[\],:=]|[^{}\[\],:=]+")


def model_beside(model: str | None, flags: Sequence[str]) -> tuple[str | None, tuple[str, ...]]:
    """The model that is named, also in the flags, and the flags without it. Raises UsageError."""
    words = list(flags)
    named = [] if model is None else [model]
    if words and not words[0].startswith("-"):
        named.append(words.pop(0))
    rest: list[str] = []
    while words:
        word = words.pop(0)
        if word == "--model" and words:
            named.append(words.pop(0))
        elif word.startswith("--model="):
            named.append(word.partition("=")[2])
        else:
            rest.append(word)
    if len(set(named)) > 1:
        raise UsageError(
            f"two models are named: {named[0]} and {named[1]}", hint=f"--model {named[0]}"
        )
    return (named[0] if named else None), tuple(rest)


def refused_flags(
    said: str, flags: Sequence[str], options: Collection[str] = ()
) -> UsageError | None:
    """What to say where vLLM's parser refuses the flags, which has these `options`; else None."""
    known = {_name(word) for word in flags}
    unknown: list[str] = []
    if said.startswith(_UNKNOWN):
        unknown = [word for word in said.removeprefix(_UNKNOWN).split() if _name(word) in known]
    argument = _ARGUMENT.match(said)
    if not unknown and (argument is None or f"--{argument['option']}" not in known):
        return None
    instead = list(_instead(unknown, options))
    if argument and _NO_JSON in said and (value := _json_of(f"--{argument['option']}", flags)):
        instead = [f"--{argument['option']} {shlex.quote(json.dumps(value))}"]
    return UsageError(
        f"vLLM does not take these flags: {one_line(said)}",
        hint="; ".join(instead) or "vllm serve --help=all lists them",
    )


def _json_of(option: str, flags: Sequence[str]) -> Any:
    """The object that an option's words were before a shell took its quotes, if any."""
    at = next(at for at, word in enumerate(flags) if _name(word) == option)
    words = [flags[at].partition("=")[2], *itertools.takewhile(_is_value, flags[at + 1 :])]
    said = ",".join(word.strip("'").strip(",") for word in words if word)
    signs = (sign.strip().strip("\"'\\") for sign in _SIGNS.findall(said))
    text = "".join(":" if one == "=" else _literal(one) for one in signs if one)
    with contextlib.suppress(ValueError):
        value = json.loads(text if text[:1] == "{" else f"{{{text}}}")
        return value or None


def _is_value(word: str) -> bool:
    return not word.startswith("-")


def _literal(word: str) -> str:
    """A sign of JSON, a number or a word that it has as it is, any other in quotes."""
    if word in "{}[],:":
        return word
    with contextlib.suppress(ValueError):
        json.loads(word)
        return word
    return json.dumps(word)


def refuse_unknown(engine_args: Iterable[str], known: Collection[str]) -> None:
    """Raises UsageError for the first name that is no argument of vLLM's engine."""
    for name in engine_args:
        if name in known:
            continue
        near = difflib.get_close_matches(name, known, n=1)
        hint = near[0] if near else "vllm serve --help=all lists them, with dashes"
        if knob := next(retired_among({name: None}), None):
            hint = _today(knob)
        raise UsageError(f"engine_args: the installed vLLM has no argument {name}", hint=hint)


def _name(word: str) -> str:
    """A flag as vLLM's parser takes it, without its value; another word as it is."""
    if not word.startswith("--"):
        return word
    return word.partition("=")[0].partition(".")[0].replace("_", "-")


def _instead(unknown: Sequence[str], options: Collection[str]) -> Iterator[str]:
    for name in filter(lambda name: name.startswith("--"), map(_name, unknown)):
        if knob := next(retired_in(name), None):
            yield _today(knob)
        elif near := difflib.get_close_matches(name[2:], options, n=1):
            yield f"--{near[0]} for {name}"


def _today(knob: RetiredKnob) -> str:
    gone = f"gone since vLLM {knob.absent_in}"
    return f"{knob.today} for {knob.name}" if knob.today else f"leave out {knob.name}, {gone}"


# Without a GPU these cannot be had, and neither tokens nor encoder budget depend on them.
GPU_ONLY = (
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "data_parallel_size",
    "distributed_executor_backend",
    "enable_expert_parallel",
    "mm_encoder_tp_mode",
    "gpu_memory_utilization",
    "kv_cache_memory_bytes",
    "kv_cache_dtype",
    "quantization",
    "cpu_offload_gb",
    "attention_backend",
    "mm_encoder_attn_backend",
    "device_ids",
    "load_format",
    "mm_processor_device",
)


def here(engine_args: Mapping[str, Any], device: str) -> dict[str, Any]:
    """The arguments that can be had on this machine, of the device `cpu` or another."""
    left_out = GPU_ONLY if device == "cpu" else ()
    return {name: value for name, value in engine_args.items() if name not in left_out}


def serves(device: str, gpu: Gpu | None) -> bool:
    """Whether what starts on this machine starts on the GPU that will serve, as far as known."""
    if device == "cpu":
        return False
    return gpu is None or not gpus.has_gpu() or gpu.torch_name == gpus.present().torch_name


LISTS_MODELS = "mmcalib list models (multimodal ones)"


def context_of(engine_args: Mapping[str, Any]) -> int | None:
    """The context that a configuration asks for; None where it leaves that to vLLM, as -1 does."""
    wanted = engine_args.get("max_model_len")
    return wanted if isinstance(wanted, int) and wanted > 0 else None


def open_model(
    host: EngineHost,
    resolved: ResolvedModel,
    progress: Progress,
    *,
    context_tokens: int | None = None,
    engine_args: Mapping[str, Any] | None = None,
    text_only: ModelError | None = None,
) -> ModelInfo:
    """Open the model in the child with its own or this context and the server's other arguments.
    Raises EngineError where vLLM refuses it, `text_only` where it takes no media.
    """
    request = OpenModel(resolved.path, context_tokens, engine_args=dict(engine_args or {}))
    with progress.step("opening the model in vLLM"):
        try:
            return host.ask(request, "opening the model")
        except NotMultimodal:
            raise (text_only or takes_no_media(resolved)) from None


def takes_no_media(
    resolved: ResolvedModel, so: str = "", hint: str = f"{LISTS_MODELS}, or --model another"
) -> ModelError:
    """Of a model that is text-only, and `so`."""
    return ModelError(f"{resolved.id} takes no images, video or audio{so}", hint=hint)
