"""Answers requests one at a time. Each kind of request has its module; this one only routes."""

from __future__ import annotations

import traceback
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from mmcalib.child.exception_words import exhausted, kind_of, what_failed
from mmcalib.engine import messages as m

if TYPE_CHECKING:
    from mmcalib.child.model import OpenedModel
    from mmcalib.child.rehearsal.install import Stage
    from mmcalib.domain.traffic import Traffic
    from mmcalib.models.gpus import Gpu


class Service:
    """State of one child: the opened model and, after a start, the engine; or an imaginary GPU."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._model: OpenedModel | None = None
        self._engine: Any = None
        self._stage: Stage | None = None

    def say(self, answer: m.Message) -> None:
        self._pipe.send_bytes(m.encode(answer))

    def _note(self, text: str) -> None:
        self.say(m.Said(text))

    @property
    def model(self) -> OpenedModel:
        if self._model is None:
            raise RuntimeError("no model is open: send OpenModel first")
        return self._model

    def answer(self, request: m.Message) -> m.Reply:
        """Do what the request asks and return its closing reply; imports are lazy, one per kind."""
        imagined = isinstance(request, m.ServeTraffic) and request.gpu is not None
        own = m.Look | m.Imagine | m.Rehearse
        if not imagined and not isinstance(request, own):
            from mmcalib.releases.platforms import borrow_cpu

            borrow_cpu()
        match request:
            case m.Look():
                from mmcalib.child.environment_probe import look

                return look()
            case m.OpenModel():
                from mmcalib.child.model import OpenedModel

                self._model = OpenedModel(request)
                return m.ModelOpened(self._model.describe())
            case m.Measure():
                from mmcalib.child.costs import measure

                for measured in measure(self.model, request):
                    self.say(measured)
                return m.Done()
            case m.CountEmbeds():
                from mmcalib.child.counting import count

                return count(self.model, request)
            case m.CountTexts():
                from mmcalib.child.texts import count_texts

                return count_texts(self.model.texts(), request)
            case m.BoundTexts():
                from mmcalib.child.text_bound import text_bound

                return m.TextsBound(text_bound(self.model.texts(), request.modalities))
            case m.FindCounting():
                from mmcalib.child.texts import find_counting

                return find_counting(self.model.texts(), request.modalities)
            case m.CompareDevices():
                from mmcalib.child.devices import compare

                return compare(self.model, request)
            case m.AskBudget():
                from mmcalib.child.budget import budget

                return m.BudgetFound(budget(request))
            case m.ParseServeConfig():
                from mmcalib.child.configfile import parse

                return parse(request)
            case m.ListServeOptions():
                from mmcalib.child.configfile import options

                return options()
            case m.StartEngine():
                from mmcalib.child.startup import start

                self._engine, started = start(request, say=self._note)
                return started
            case m.Replay():
                from mmcalib.child.replay import replay

                return replay(self._engine, request)
            case m.Imagine():
                self._imagine(request.gpu)
                return m.Done()
            case m.Rehearse():
                stage = self._imagine(request.gpu)
                from mmcalib.child.rehearsal.rehearse import rehearse

                return m.RehearsalFound(rehearse(stage, request))
            case m.ServeTraffic():
                return m.TrafficServed(self._serve(request))
        raise TypeError(f"unknown request {type(request).__name__}")

    def _serve(self, request: m.ServeTraffic) -> Traffic:
        if request.gpu is not None:
            stage = self._imagine(request.gpu)
            from mmcalib.child.rehearsal.traffic import serve_imagined

            return serve_imagined(stage, request, self._note)
        from mmcalib.child.traffic import StepBooks, serve

        return serve(request, StepBooks(), self._note)

    def _imagine(self, gpu: Gpu) -> Stage:
        """The stage, set for this GPU at the first call. Raises ValueError for another GPU."""
        from mmcalib.child.rehearsal.install import install

        if self._stage is None:
            self._stage = install(gpu)
        if self._stage.gpu != gpu:
            raise ValueError(f"this process imagines a {self._stage.gpu.name}, not a {gpu.name}")
        return self._stage


def serve(pipe: Connection) -> None:
    """Answer until the parent closes its end."""
    service = Service(pipe)
    while True:
        try:
            request = m.decode(pipe.recv_bytes())
        except (EOFError, OSError):
            return
        try:
            service.say(service.answer(request))
        except Exception as error:  # noqa: BLE001 - whatever vLLM raises becomes one clear line
            traceback.print_exc()
            service.say(m.Failed(what_failed(error), kind_of(error), exhausted(error)))
