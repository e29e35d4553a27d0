"""Kinds and words of failures in the child, and what to type after them."""

from __future__ import annotations

import re
import shlex
import sys
import traceback
from pathlib import Path

from mmcalib import errors, processes
from mmcalib.engine import messages as m
from mmcalib.models.catalogue import quantized_twins
from mmcalib.models.cut import read_config
from mmcalib.releases.constants import MACHINE_FULL, NO_ROOM
from mmcalib.releases.release import TargetMissing, version_of

_OURS = Path(__file__).resolve().parent.parent

_RELEASE_HINT = "mmcalib doctor (shows whether mmcalib is tested with this vLLM release)"
_REFUSAL_CHARS = 300
_FAILURE_CHARS = 500
# PyTorch's prefix that names the failed condition in its code.
_ENFORCED = re.compile(r"^\[enforce fail at [^]]*\] [\w.]+ == [\w.]+ ")

# Parts of pydantic's and argparse's errors that do not help a user.
_ADDRESS = re.compile(r" For further information visit https?://\S+")
_FUNCTION = re.compile(r"<function loads at 0x[0-9a-f]+>")
# The end of a long one is missing.
_ONE_ERROR = re.compile(
    r"1 validation error for \w+ Value error, (?P<words>.+?)(?: \[type=value_error|\Z)"
)

# `ModelConfig._verify_quantization` (vllm/config/model.py, 0.32) lists all methods after it.
_NO_METHOD = re.compile(r"Unknown quantization method: (\S+)\. Must be one of (\[.*?\])")
# `resolve_trust_remote_code` of transformers (dynamic_module_utils.py, 5.19).
_OWN_CODE = "Please pass the argument `trust_remote_code=True`"
# `get_config` (vllm/transformers_utils/config.py, 0.32) of a model that the arguments name.
_NO_REPOSITORY = re.compile(r"Invalid repository ID or local directory specified: '([^']+)'")
# vLLM (0.32) builds the method's config of nothing.
_NOT_QUANTIZED = re.compile(r"(\w+)Config\.__init__\(\) missing")
# Libraries of some models (timm, num2words) are no requirements of vLLM's.
_LACKING = re.compile(r"^(.+?)\. .*pip install [`'\"]?([A-Za-z][\w.-]*\w)")
# Methods of checkpoints on the hub; the others are kernels' and online methods.
_PUBLISHED = ("awq", "gptq", "fp8", "compressed-tensors", "modelopt_fp4", "mxfp4", "mxfp8")


def refusal_error(error: BaseException, request: m.Message, doing: str) -> errors.EngineError:
    """Return what the parent raises for an exception while `doing` what the request asks."""
    reason, hint = explain(error, request)
    message = reason if hint else f"{reason} (vLLM, while {doing})"
    match error:
        case errors.NotMultimodal():
            return errors.NotMultimodal(message, reason=reason)
        case ModuleNotFoundError(name="vllm" | "torch"):
            return errors.VllmMissing()
    if is_incompatible(error):
        return errors.VllmMoved(message, reason=reason, hint=_RELEASE_HINT)
    kind = errors.ConfigRejected if _is_rejection(error) else errors.VllmRefused
    return kind(message, hint=hint, reason=reason, exhausted=exhausted_resource(error))


def _is_rejection(error: BaseException) -> bool:
    """Return True if vLLM's own line raised it for a value or a combination that it does not take.

    Other exceptions may be failures of a kernel, of torch or of the simulated GPU.
    """
    while error.__cause__ is not None:
        error = error.__cause__
    frames = traceback.extract_tb(error.__traceback__)
    # vLLM's configs are dataclasses of pydantic, which raises what their validators raise.
    while frames and "pydantic" in Path(frames[-1].filename).parts:
        frames.pop()
    vllm = getattr(sys.modules.get("vllm"), "__file__", None)
    if not frames or vllm is None or not isinstance(error, ValueError | NotImplementedError):
        return False
    return Path(frames[-1].filename).is_relative_to(Path(vllm).parent)


def refusal_reason(error: Exception) -> str:
    """Return why vLLM refuses one of several things. Raises `error` if `releases` is outdated."""
    if is_incompatible(error, within=_OURS / "releases"):
        raise error
    return root_cause(error)


def is_incompatible(error: BaseException, within: Path = _OURS) -> bool:
    """Return True if mmcalib's own line failed because it does not fit this release of vLLM."""
    if isinstance(error, TargetMissing):
        return True
    if not isinstance(error, AttributeError | ImportError | TypeError):
        return False
    frames = traceback.extract_tb(error.__traceback__)
    # A class may raise for missing attributes in its own `__getattr__`.
    while frames and frames[-1].name == "__getattr__":
        frames.pop()
    return bool(frames) and Path(frames[-1].filename).is_relative_to(within)


def root_cause(error: BaseException) -> str:
    """Return the innermost message of a chain of errors; the outer ones only name the place."""
    while error.__cause__ is not None:
        error = error.__cause__
    return _line(error)[:_REFUSAL_CHARS]


def exhausted_resource(error: BaseException) -> str:
    """Return the resource that ran out, also for errors of vLLM, PyTorch or a GPU; else empty."""
    if resource := processes.exhausted(error):
        return resource
    cause: BaseException | None = error
    while cause is not None:
        if type(cause).__name__ == "OutOfMemoryError" or MACHINE_FULL.search(str(cause)):
            return "memory"
        cause = cause.__cause__
    return ""


def explain(error: BaseException, request: m.Message | None = None) -> tuple[str, str]:
    """Return the error's words on one line, and what to type next; empty if only they help.

    Words that mmcalib does not know are the outermost message, and the innermost if it differs.
    """
    outer, inner = _line(error), root_cause(error)
    words = _plain(outer if inner in outer else f"{inner} (in: {outer})")[:_FAILURE_CHARS]
    if is_incompatible(error):
        return f"mmcalib does not fit this vLLM ({version_of('vllm')}): {outer}", ""
    if method := _NO_METHOD.search(outer):
        why = f"the installed vLLM has no quantization method {method[1]}"
        return why, _quantized_otherwise(method[2], request)
    if method := _NOT_QUANTIZED.search(words):
        why = f"this checkpoint has no quantization config, and {method[1]} needs one"
        return why, "-- --quantization fp8, or --model with a quantized checkpoint"
    if _OWN_CODE in outer:
        why = "the model's folder has code of its own, which vLLM runs only if you trust it"
        return why, "read its .py files, then add -- --trust-remote-code"
    no_room = NO_ROOM.search(outer) or NO_ROOM.search(inner)
    if no_room and not no_room["external"]:
        return _describe_no_room(no_room), ""
    # `get_processor` (vllm/transformers_utils/processor.py, 0.32) names only the two classes.
    if "Invalid type of HuggingFace processor" in outer:
        return words, "copy the original model's *processor_config.json into the folder"
    if missing := _NO_REPOSITORY.search(outer):
        repository = shlex.quote(missing[1])
        return words, f"hf download {repository} config.json (mmcalib fetches only --model)"
    if lacking := _LACKING.search(words):
        return lacking[1], f"pip install {lacking[2]}"
    return words, ""


def _plain(words: str) -> str:
    """Return vLLM's own words without those that pydantic and argparse put around them."""
    words = _FUNCTION.sub("JSON", _ADDRESS.sub("", words))
    only = _ONE_ERROR.match(words)
    return only["words"] if only else words


def _quantized_otherwise(methods: str, request: m.Message | None) -> str:
    """Return what to type instead of a method that is not among vLLM's `methods`."""
    folder = request.path if isinstance(request, m.OpenModel) else None
    folder = folder or getattr(request, "engine_args", {}).get("model")
    twins = quantized_twins(read_config(Path(folder))) if folder else []
    known = ", ".join(name for name in _PUBLISHED if repr(name) in methods)
    ways = *(f"--model {twin}" for twin in twins[:1]), f"a checkpoint in {known}"
    return ", or ".join((*ways, "an unquantized one with --quantization fp8"))


def _describe_no_room(match: re.Match[str]) -> str:
    free, total = float(match["free"]), float(match["total"])
    # Rounded down, because free memory may shrink a little until the next start.
    share = int(free / total * 100) / 100
    remedy = f"; --gpu-memory-utilization {share:.2f} would fit" if share > 0 else ""
    return (
        f"{match['free']} of {match['total']} GiB are free on {match['device'] or 'the GPU'}, "
        f"but gpu_memory_utilization {match['share']} needs {match['wanted']} GiB: "
        f"nvidia-smi lists what uses the rest{remedy}"
    )


def _line(error: BaseException) -> str:
    """Return the error's message, or the line that raised it for one without (an assertion)."""
    if words := _ENFORCED.sub("", " ".join(str(error).split())):
        return words
    frames = traceback.extract_tb(error.__traceback__)
    where = f" in {Path(frames[-1].filename).name}: {frames[-1].line}" if frames else ""
    return f"{type(error).__name__}{where}"
