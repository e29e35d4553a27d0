"""Route requests to the code that answers them; torch is imported late."""

from __future__ import annotations

import gc
import importlib
import io
import pickle
import sys
import traceback
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

import numpy as np

from mmcalib.child.failures import refusal_error, root_cause
from mmcalib.engine import messages as m
from mmcalib.models.gpus import Gpu

if TYPE_CHECKING:
    from mmcalib.child.model import OpenedModel
    from mmcalib.child.rehearsal.startup import ImaginaryMachine

# vLLM resizes and resamples with these.
_LIBRARIES = ("torchvision", "torchaudio")
# Of these packages the parent may have any value.
_PARENTS = frozenset(("mmcalib", *sys.stdlib_module_names))


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


class OwnPickler(pickle.Pickler):
    """Sends numbers, texts, and tuples of other packages as plain ones. Raises TypeError for their
    other values, for which the parent would have to import them.
    """

    def reducer_override(self, value: object) -> Any:
        kind = value if isinstance(value, type) else type(value)
        if kind.__module__.partition(".")[0] in _PARENTS:
            return NotImplemented
        match value:
            case np.generic():
                return type(value.item()), (value.item(),)
            case str():
                return str, (str.__str__(value),)
            case int():
                return int, (int(value),)
            case float():
                return float, (float(value),)
            case tuple():
                return tuple, ([*value],)
        raise TypeError(f"a {kind.__module__}.{kind.__qualname__} is in an answer")


class Service:
    """State of one child: the opened model and, once started, the engine; or an imaginary GPU."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._model: OpenedModel | None = None
        self._engine: Any = None
        self._engine_args: dict[str, Any] = {}
        self._machine: ImaginaryMachine | None = None

    def say(self, answer: object) -> None:
        pickled = io.BytesIO()
        OwnPickler(pickled).dump(answer)
        self._pipe.send_bytes(pickled.getbuffer())

    @property
    def model(self) -> OpenedModel:
        if self._model is None:
            raise RuntimeError("no model is open: send OpenModel first")
        return self._model

    def answer(self, request: m.Message) -> object:
        """Carry out the request and return its closing reply; imports are lazy."""
        on_imaginary = hasattr(request, "gpu")
        if not on_imaginary and not isinstance(request, m.ProbeEnvironment):
            from mmcalib.releases.platform import borrow_cpu

            borrow_cpu()
        match request:
            case m.ProbeEnvironment():
                return probe_environment()
            case m.OpenModel():
                from mmcalib.child.model import OpenedModel

                gc.enable()
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

                gc.enable()
                self._engine, started = start_engine(request, say=self.say)
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
                return None
            case m.Rehearse():
                machine = self._use_imaginary_gpu(request.gpu)
                from mmcalib.child.rehearsal.rehearse import rehearse

                return rehearse(machine, request)
            case m.ServeTraffic():
                machine = self._use_imaginary_gpu(request.gpu)
                from mmcalib.child.rehearsal.traffic import serve

                return serve(machine, request, self.say)
        return self._answer_about_items(request)

    def _answer_about_items(self, request: m.Message) -> object:
        from mmcalib.child import processor, texts

        match request:
            case m.Measure():
                for measured in processor.measure_items(self.model, request):
                    self.say(measured)
                return None
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
    # The imports of the first answer make millions of objects that stay.
    gc.disable()
    service = Service(pipe)
    while True:
        try:
            request, doing = pipe.recv()
        except (EOFError, OSError):
            return
        try:
            service.say(service.answer(request))
        except Exception as error:  # noqa: BLE001 - any exception of vLLM becomes one line
            traceback.print_exc()
            service.say(refusal_error(error, request, doing))
        gc.enable()
