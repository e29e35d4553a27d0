"""Route requests to the code that answers them, and describe failures; torch is imported late."""

from __future__ import annotations

import importlib
import re
import shlex
import sys
import traceback
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmcalib import processes
from mmcalib.engine import messages as m
from mmcalib.engine.messages import FailureKind
from mmcalib.models.catalogue import quantized_twins
from mmcalib.models.cut import read_config
from mmcalib.models.gpus import Gpu
from mmcalib.releases.constants import MACHINE_FULL, NO_ROOM
from mmcalib.releases.release import TargetMissing, version_of

if TYPE_CHECKING:
    from mmcalib.child.model import OpenedModel
    from mmcalib.child.rehearsal.startup import ImaginaryMachine

_OURS = Path(__file__).resolve().parent.parent

REFUSAL_CHARS = 300
FAILURE_CHARS = 500
# PyTorch's prefix that names the failed condition in its code.
_ENFORCED = re.compile(r"^\[enforce fail at [^]]*\] [\w.]+ == [\w.]+ ")

# `ModelConfig._verify_quantization` (vllm/config/model.py, 0.32) lists all methods after it.
_NO_METHOD = re.compile(r"Unknown quantization method: (\S+)\. Must be one of (\[.*?\])")
# `resolve_trust_remote_code` of transformers (dynamic_module_utils.py, 5.19).
_OWN_CODE = "Please pass the argument `trust_remote_code=True`"
# `get_config` (vllm/transformers_utils/config.py, 0.32) of a model that the arguments name.
_NO_REPOSITORY = re.compile(r"Invalid repository ID or local directory specified: '([^']+)'")
# Methods of checkpoints on the hub; the others are kernels' and online methods.
_PUBLISHED = ("awq", "gptq", "fp8", "compressed-tensors", "modelopt_fp4", "mxfp4", "mxfp8")


class NotMultimodalError(ValueError):
    """The model takes no media."""


def failure_kind(error: BaseException) -> FailureKind:
    match error:
        case NotMultimodalError():
            return "not_multimodal"
        case ModuleNotFoundError(name="vllm" | "torch"):
            return "not_installed"
    if is_incompatible(error):
        return "moved"
    return "rejected" if _is_rejection(error) else "vllm"


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
    return _line(error)[:REFUSAL_CHARS]


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


def describe_failure(error: BaseException) -> str:
    """Return the outermost message, and the innermost if it differs, on one line."""
    if failure_kind(error) == "moved":
        return f"mmcalib does not fit this vLLM ({version_of('vllm')}): {_line(error)}"
    outer, inner = _line(error), root_cause(error)
    if method := _NO_METHOD.search(outer):
        return f"the installed vLLM has no quantization method {method[1]}"
    if _OWN_CODE in outer:
        return "the model's folder has code of its own, which vLLM runs only if you trust it"
    no_room = NO_ROOM.search(outer) or NO_ROOM.search(inner)
    if no_room and not no_room["external"]:
        return _describe_no_room(no_room)
    if inner in outer:
        return outer[:FAILURE_CHARS]
    return f"{inner} (in: {outer})"[:FAILURE_CHARS]


def remedy_for(error: BaseException, request: m.Message) -> str:
    """Return what to type after the request's error; empty if only vLLM's message helps."""
    line = _line(error)
    if _OWN_CODE in line:
        return "read its .py files, then add -- --trust-remote-code"
    # `get_processor` (vllm/transformers_utils/processor.py, 0.32) names only the two classes.
    if "Invalid type of HuggingFace processor" in line:
        return "copy the original model's *processor_config.json into the folder"
    if missing := _NO_REPOSITORY.search(line):
        return f"hf download {shlex.quote(missing[1])} config.json (mmcalib fetches only --model)"
    if not (match := _NO_METHOD.search(line)):
        return ""
    folder = request.path if isinstance(request, m.OpenModel) else None
    folder = folder or getattr(request, "engine_args", {}).get("model")
    twins = quantized_twins(read_config(Path(folder))) if folder else []
    known = ", ".join(name for name in _PUBLISHED if repr(name) in match[2])
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


# vLLM resizes and resamples with these.
_LIBRARIES = ("torchvision", "torchaudio")


def probe_environment() -> m.EnvironmentReport:
    """Find vLLM's device; creates a CUDA context. Raises ImportError if mmcalib does not fit."""
    import torch

    importlib.import_module("mmcalib.child.model")
    from mmcalib.releases import platform

    current = platform.current()
    free, total = torch.cuda.mem_get_info(0) if current.is_cuda() else (None, None)
    failing: dict[str, str] = {}
    for name in _LIBRARIES:
        try:
            importlib.import_module(name)
        except Exception as error:  # noqa: BLE001 - native libraries raise various exceptions
            failing[name] = root_cause(error)
    return m.EnvironmentReport(current.device_type or "", free, total, failing)


class Service:
    """State of one child: the opened model and, once started, the engine; or an imaginary GPU."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._model: OpenedModel | None = None
        self._engine: Any = None
        self._engine_args: dict[str, Any] = {}
        self._machine: ImaginaryMachine | None = None

    def say(self, answer: object) -> None:
        self._pipe.send_bytes(m.encode(answer))

    def _note(self, text: str) -> None:
        self.say(m.Note(text))

    @property
    def model(self) -> OpenedModel:
        if self._model is None:
            raise RuntimeError("no model is open: send OpenModel first")
        return self._model

    def answer(self, request: m.Message) -> object:
        """Carry out the request and return its closing reply; imports are lazy."""
        on_imaginary = isinstance(request, m.ServeTraffic) and request.gpu is not None
        if not on_imaginary and not isinstance(
            request, m.ProbeEnvironment | m.UseImaginaryGpu | m.Rehearse
        ):
            from mmcalib.releases.platform import borrow_cpu

            borrow_cpu()
        match request:
            case m.ProbeEnvironment():
                return probe_environment()
            case m.OpenModel():
                from mmcalib.child.model import OpenedModel

                self._model = OpenedModel(request)
                return self._model.describe()
            case m.ParseServeConfig():
                from mmcalib.child.config import parse_serve_config

                return parse_serve_config(request)
            case m.ListServeOptions():
                from mmcalib.child.config import list_serve_options

                return list_serve_options()
            case m.StartEngine():
                from mmcalib.child.engine import start_engine

                self._engine, started = start_engine(request, say=self._note)
                self._engine_args = request.engine_args
                return started
            case m.Replay():
                from mmcalib.child.engine import run_burst
                from mmcalib.releases.processors import PromptSettings

                return run_burst(
                    self._engine, request, PromptSettings.from_arguments(self._engine_args)
                )
            case m.UseImaginaryGpu():
                self._use_imaginary_gpu(request.gpu)
                return m.Done()
            case m.Rehearse():
                machine = self._use_imaginary_gpu(request.gpu)
                from mmcalib.child.rehearsal.rehearse import rehearse

                return rehearse(machine, request)
            case m.ServeTraffic(gpu=None):
                from mmcalib.child.traffic import StepLedger, serve

                return serve(request, StepLedger(), self._note)
            case m.ServeTraffic(gpu=Gpu() as gpu):
                machine = self._use_imaginary_gpu(gpu)
                from mmcalib.child.rehearsal.traffic import serve_on_imaginary_gpu

                return serve_on_imaginary_gpu(machine, request, self._note)
        return self._answer_about_items(request)

    def _answer_about_items(self, request: m.Message) -> object:
        from mmcalib.child import processor, texts

        match request:
            case m.Measure():
                for measured in processor.measure_items(self.model, request):
                    self.say(measured)
                return m.Done()
            case m.CountEmbeds():
                return processor.count_blanks(self.model, request)
            case m.CompareDevices():
                return processor.compare_devices(self.model, request)
            case m.ComputeBudget():
                return processor.compute_budget(request)
            case m.CountTexts():
                return texts.count_texts(self.model.texts, request)
            case m.SplitTexts():
                return texts.split_texts(self.model.texts, request)
            case m.BoundTexts():
                return texts.text_bound(self.model.texts, request.modalities)
            case m.FindCounting():
                return texts.find_counting(self.model.texts, request.modalities)
            case m.FindGrammar():
                return texts.find_grammar(self.model.texts, request.modalities)
        raise TypeError(f"unknown request {type(request).__name__}")

    def _use_imaginary_gpu(self, gpu: Gpu) -> ImaginaryMachine:
        """Return the machine with this imaginary GPU. Raises ValueError after another GPU."""
        from mmcalib.child.rehearsal.startup import install

        if self._machine is None:
            self._machine = install(gpu)
        if self._machine.gpu != gpu:
            raise ValueError(f"this process simulates {self._machine.gpu.name}, not {gpu.name}")
        return self._machine


def serve(pipe: Connection) -> None:
    service = Service(pipe)
    while True:
        try:
            request = m.decode(pipe.recv_bytes())
        except (EOFError, OSError):
            return
        try:
            service.say(service.answer(request))
        except Exception as error:  # noqa: BLE001 - any exception of vLLM becomes one line
            traceback.print_exc()
            service.say(
                m.Failed(
                    describe_failure(error),
                    failure_kind(error),
                    exhausted_resource(error),
                    remedy_for(error, request),
                )
            )
