"""What the user says of the server besides: vLLM's own flags, read by vLLM's own parser."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from mmcalib.checks.catalogue.engine import NOT_STARTED_WITH
from mmcalib.checks.check import Check
from mmcalib.engine.messages import ServeConfig
from mmcalib.errors import MmcalibError, UsageError, VllmRefused
from mmcalib.gpus.gpu import Gpu
from mmcalib.models import ResolvedModel, find
from mmcalib.options.given import refuse_own
from mmcalib.progress import Progress
from mmcalib.wording import flag, one_line
from mmcalib.workflows.config_file import UNNAMED
from mmcalib.workflows.here import here
from mmcalib.workflows.memory.prediction import EngineArgs, MemoryPrediction
from mmcalib.workflows.refused import refusal
from mmcalib.workflows.serve_flags import refused_flags

# vLLM (0.32) where a checkpoint is not quantised as it is told.
_NOT_QUANTISED: Final = re.compile(r"Cannot find the config file for (\w+)")


def said_by_flags(
    flags: Sequence[str],
    parse: Callable[[Sequence[str]], ServeConfig],
    progress: Progress,
    *,
    pinned: bool = False,
) -> dict[str, Any]:
    """The engine arguments that the flags set, as vLLM's parser reads them behind `vllm serve`.
    Raises UsageError where it refuses them, or one is the API server's alone or decided by a
    calibration itself, one that pins the KV cache where it is `pinned`.
    """
    if not flags:
        return {}
    try:
        with progress.step("reading vLLM's flags"):
            said = parse((UNNAMED, *flags))
    except VllmRefused as error:
        said_so = refusal(error)
        raise refused_flags(said_so, flags) or UsageError(
            f"vLLM does not take these flags: {one_line(said_so)}",
            hint="vllm serve --help=all lists them",
        ) from error
    if said.server:
        named = ", ".join(map(flag, said.server))
        raise UsageError(
            f"{named}: of vLLM's server, and nothing that is calibrated depends on it",
            hint="leave it out here; vllm serve --config engine.yaml takes it beside the file",
        )
    given = {name: value for name, value in said.engine_args.items() if name != "model"}
    # By any of their names, such as -cc.
    refuse_own((), given, pinned=pinned)
    return given


def refuse_unusable(
    prediction: MemoryPrediction,
    default: EngineArgs,
    given: Mapping[str, Any],
    flags: Sequence[str],
    resolved: ResolvedModel,
) -> None:
    """Raises UsageError where vLLM refuses the model under these arguments, and not without."""
    if not given:
        return
    try:
        prediction.rehearse(default)
    except VllmRefused as error:
        refused = error
    except MmcalibError:
        return
    else:
        return
    try:
        prediction.rehearse({k: v for k, v in default.items() if k not in given})
    except MmcalibError:
        return
    said = shlex.join(flags) or ", ".join(given)
    raise UsageError(
        f"vLLM refuses {resolved.id} with {said}: {one_line(refusal(refused))}",
        hint=_remedy(refused.reason, resolved),
    ) from refused


def _remedy(reason: str, resolved: ResolvedModel) -> str:
    found = _NOT_QUANTISED.search(reason)
    if found is None:
        return "change the flag that it names, or leave it out"
    method = found[1]
    sibling = f"{resolved.id}-{method.upper()}"
    other = f"--model {sibling}" if find(sibling) else "--model with a checkpoint that is"
    return f"this checkpoint is not quantized: {other}, or -- --quantization fp8"


def given_check(given: Mapping[str, Any], device: str, gpu: Gpu | None) -> Check | None:
    """What no engine is started with here; None where nothing is left out."""
    had = here(given, device)
    left = [name for name in given if name not in had]
    if not left:
        return None
    names = ", ".join(map(flag, left))
    why = "they need a GPU, and tokens and encoder budget do not depend on them"
    if gpu is None:
        return Check(
            NOT_STARTED_WITH.of(names),
            "warn",
            f"{why}; what memory they leave is not known",
            "--gpu NAME rehearses them",
        )
    return Check(NOT_STARTED_WITH.of(names), "skip", f"{why}; memory on {gpu.name} is rehearsed")
