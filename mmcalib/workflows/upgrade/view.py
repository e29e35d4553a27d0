"""Looks at one installation of vLLM: rehearses there, and has its processor cost some items."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from mmcalib.domain.model import ModelInfo
from mmcalib.domain.rehearsed import Rehearsed
from mmcalib.domain.release_view import ComparedItem, ReleaseView, ServeArguments
from mmcalib.domain.setting import Setting
from mmcalib.domain.shapes import Shape
from mmcalib.engine.host import EngineHost
from mmcalib.engine.interpreter import Interpreter
from mmcalib.engine.messages import Blank, Measure, OpenModel
from mmcalib.errors import EngineError, NotMultimodal
from mmcalib.gpus.gpu import Gpu
from mmcalib.models import ResolvedModel
from mmcalib.progress import Progress
from mmcalib.workflows.config_file import WrittenConfiguration
from mmcalib.workflows.memory.rehearse import Rehearsals
from mmcalib.workflows.opening import context_of
from mmcalib.workflows.upgrade.arguments import serve_arguments
from mmcalib.workflows.upgrade.shapes import taken
from mmcalib.workflows.validate.subject import setting_of


class ReleaseProbe:
    """Asks one installation. What it cannot say is a problem of the view, and not an error: the
    rest is compared all the same.
    """

    def __init__(
        self, where: Interpreter, gpu: Gpu, shapes: Sequence[Shape], progress: Progress
    ) -> None:
        self._where, self._gpu, self._shapes, self._progress = where, gpu, shapes, progress
        self._problems: list[str] = []
        self._refusals: list[EngineError] = []

    def view(self, model: ResolvedModel, configuration: WrittenConfiguration) -> ReleaseView:
        """Raises EngineError where neither could be had, UsageError as `Rehearsals.parsed`."""
        serve, args, rehearsed = self._rehearsed(model, configuration)
        opened, items, heeded = self._measured(model, args)
        if rehearsed is None and opened is None:
            raise self._refusals[0]
        return ReleaseView(
            vllm=self._where.vllm,
            python=self._where.named,
            serve=serve,
            rehearsed=rehearsed,
            opened=opened,
            items=items,
            heeded=heeded,
            problems=tuple(self._problems),
        )

    @contextlib.contextmanager
    def _noted(self, title: str) -> Iterator[None]:
        """A step whose failure is a problem of this release."""
        try:
            with self._progress.step(f"vLLM {self._where.vllm}: {title}"):
                yield
        except NotMultimodal:
            raise
        except EngineError as error:
            self._problems.append(error.message)
            self._refusals.append(error)

    def _rehearsed(
        self, model: ResolvedModel, configuration: WrittenConfiguration
    ) -> tuple[ServeArguments | None, dict[str, Any], Rehearsed | None]:
        serve, args, rehearsed = None, dict[str, Any](), None
        with Rehearsals(
            self._gpu,
            python=self._where.path,
            on_said=self._progress.note,
            on_log=self._progress.log,
        ) as rehearsals:
            with self._noted("reading its command line"):
                serve, args = serve_arguments(rehearsals, configuration)
            with self._noted(f"rehearsing on {self._gpu.name}"):
                rehearsed = rehearsals.rehearse({**args, "model": str(model.path)})
        return serve, args, rehearsed

    def _measured(
        self, model: ResolvedModel, args: Mapping[str, Any]
    ) -> tuple[ModelInfo | None, tuple[ComparedItem, ...], dict[str, bool]]:
        opened, items, heeded = None, tuple[ComparedItem, ...](), dict[str, bool]()
        setting = setting_of(args)
        with (
            EngineHost(
                python=self._where.path, on_said=self._progress.note, on_log=self._progress.log
            ) as host,
            self._noted("measuring items"),
        ):
            request = OpenModel(str(model.path), context_of(args))
            opened = host.ask(request, "opening the model").model
            shapes = taken(self._shapes, opened.modalities)
            items = tuple(_costed(host, setting, shapes))
            for name, without in _left_out(setting):
                others = tuple(_costed(host, without, shapes))
                heeded[name] = _said(others) != _said(items)
        return opened, items, heeded


def _costed(host: EngineHost, setting: Setting, shapes: Sequence[Shape]) -> Iterator[ComparedItem]:
    request = Measure(setting, tuple(Blank(shape) for shape in shapes))
    for found in host.measure(request, "measuring items"):
        yield ComparedItem(shapes[found.index], found.cost, found.refusal)


def _said(items: Sequence[ComparedItem]) -> list[object]:
    """What of their costs does not depend on the clock."""
    return [
        item.refusal
        if item.cost is None
        else (item.cost.tokens, item.cost.embeds, item.cost.tensor_bytes, item.cost.sampled)
        for item in items
    ]


def _left_out(setting: Setting) -> Iterator[tuple[str, Setting]]:
    """The setting without each of its options, by the option's name."""
    for name in setting.mm_processor_kwargs:
        rest = {k: v for k, v in setting.mm_processor_kwargs.items() if k != name}
        yield f"mm_processor_kwargs.{name}", replace(setting, mm_processor_kwargs=rest)
    for name in setting.media_io_kwargs:
        rest = {k: v for k, v in setting.media_io_kwargs.items() if k != name}
        yield f"media_io_kwargs.{name}", replace(setting, media_io_kwargs=rest)
