"""Rehearsals of configurations; library call."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

from mmcalib.domain.memory import EncoderStep, Rehearsed
from mmcalib.domain.model import ModelInfo
from mmcalib.domain.shapes import Modality
from mmcalib.domain.traffic import Arrivals, Traffic, TrafficRequest
from mmcalib.engine import messages as m
from mmcalib.engine.config_forms import UNNAMED, WrittenConfiguration, read_configuration, trusted
from mmcalib.engine.helpers import OnceHost
from mmcalib.engine.vllm_config import refusal, refuse_unknown, refused_flags, saying_what_to_change
from mmcalib.errors import MmcalibError, UsageError, VllmRefused
from mmcalib.memory.figures import rehearsal
from mmcalib.models import gpus
from mmcalib.models.gpus import Gpu
from mmcalib.models.resolve import ResolvedModel, cache_dir, resolve
from mmcalib.processes import Closing
from mmcalib.progress import Progress, StepLog
from mmcalib.results.memory import Rehearsal

AUTO = "auto"


class Rehearsals(Closing):
    """A process that lives on one imaginary GPU; ask it for any number of configurations."""

    def __init__(
        self,
        gpu: Gpu,
        *,
        on_said: Callable[[str], None] = lambda text: None,
        on_log: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.gpu = gpu
        self._host = OnceHost(on_said=on_said, on_log=lambda line: on_log(f"rehearsal: {line}"))

    def options(self) -> m.ServeOptions:
        """The options of `vllm serve` and the arguments of vLLM's engine there."""
        self.imagine()
        return self._host.ask(m.ListServeOptions(), "listing the options of vllm serve")

    def parsed(self, configuration: WrittenConfiguration) -> m.ServeConfig:
        """A configuration as parsed, with the values of all arguments.

        Raises EngineError in vLLM's words, UsageError where the file names what only flags may.
        """
        self.imagine()
        parsed = self._host.ask(configuration.question, "reading the configuration")
        return trusted(parsed, configuration.source)

    def imagine(self) -> None:
        """Import vLLM once, on the imaginary platform: its parser asks for the platform."""
        self._host.ask(m.Imagine(self.gpu), f"imagining a {self.gpu.name}")

    def rehearse(
        self, engine_args: Mapping[str, Any], steps: tuple[EncoderStep, ...] = ()
    ) -> Rehearsed:
        """vLLM's startup with these arguments, then encoder steps; EngineError if it fails."""
        request = m.Rehearse(dict(engine_args), self.gpu, steps)
        return self._host.ask(request, f"rehearsing on {self.gpu.name}")

    def serve(
        self, engine_args: Mapping[str, Any], requests: Sequence[TrafficRequest], arrivals: Arrivals
    ) -> Traffic:
        """These requests served under these arguments. Raises EngineError where that ends early."""
        asked = m.ServeTraffic(dict(engine_args), tuple(requests), arrivals, self.gpu)
        return self._host.ask(asked, f"serving on {self.gpu.name}")

    def __exit__(self, *raised: object) -> None:
        self._host.__exit__(*raised)

    def close(self) -> None:
        self._host.close()


def gpu_of(name: str) -> Gpu:
    """The GPU of this name, or the present one for "auto". Raises UsageError, also without CUDA."""
    gpu = gpus.present() if name == AUTO else gpus.find(name)
    if gpu.memory_only or gpu.capability is None:
        raise UsageError(
            f"{gpu.name} has no CUDA: vLLM's startup there cannot be rehearsed",
            hint="--gpu H100-80G, or another that has",
        )
    return gpu


def on_gpu(opened: ModelInfo, rehearsed: Rehearsed | None) -> ModelInfo:
    """The opened model with the defaults that `vllm serve` has on the GPU of a rehearsal."""
    if rehearsed is None or rehearsed.budget is None:
        return opened
    defaults = {
        "max_num_batched_tokens": rehearsed.budget.max_num_batched_tokens,
        "max_num_seqs": rehearsed.budget.max_num_seqs,
    }
    return replace(opened, serve_defaults=defaults)


def rehearse(
    model: str | None = None,
    *,
    gpu: str | Gpu = AUTO,
    configs: Sequence[str | os.PathLike[str] | None] = (None,),
    flags: Sequence[str] = (),
    engine_args: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> list[Rehearsal]:
    """What vLLM's startup would find on `gpu`, one `Rehearsal` per config; no GPU is needed.

    Each config is a file that holds one in any form, or None for the defaults; `flags` of
    `vllm serve` and `engine_args` go on top of each. `model` may be left out where the config
    names one. Raises `mmcalib.errors.MmcalibError`.
    """
    progress = progress or StepLog()
    found = gpu_of(gpu) if isinstance(gpu, str) else gpu
    results = []
    resolved: dict[str, ResolvedModel] = {}
    with Rehearsals(found, on_said=progress.note, on_log=progress.log) as rehearsals:
        if engine_args:
            refuse_unknown(engine_args, rehearsals.options().engine)
        for config in configs:
            written = read_configuration(None if config is None else Path(config), flags, model)
            path = written.source
            with saying_what_to_change(path, flags):
                args = parse_arguments(rehearsals, written)
                named = pop_model(args)
                if named not in resolved:
                    resolved[named] = resolve(named, cache_dir=cache_dir())
                args = {**args, **(engine_args or {}), "model": str(resolved[named].path)}
                title = f"rehearsing on {found.name}" + (f" with {path}" if path else "")
                with progress.step(title):
                    answer = rehearsals.rehearse(args)
            results.append(rehearsal(answer, resolved[named], found, path))
    return results


def parse_arguments(rehearsals: Rehearsals, written: WrittenConfiguration) -> dict[str, Any]:
    """What a configuration says, as engine arguments. Raises UsageError."""
    try:
        args = rehearsals.parsed(written).engine_args
    except VllmRefused as error:
        flags = (*written.written, *written.flags)
        said = refused_flags(refusal(error), flags, rehearsals.options().arguments)
        if said is not None:
            raise said from error
        raise
    if args.get("model") == UNNAMED:
        del args["model"]
    return args


def pop_model(args: dict[str, Any]) -> str:
    """The model that the arguments name, which goes out of them. Raises UsageError without one."""
    named = str(args.pop("model", None) or "")
    if not named:
        raise UsageError("no model given", hint="--model MODEL, or `model:` in --config")
    return named


EngineArgs = Mapping[str, Any]
Steps = tuple[EncoderStep, ...]
T = TypeVar("T")


class Rehearses(Protocol):
    """`mmcalib.memory.rehearse.Rehearsals`, or what stands for it."""

    def rehearse(
        self, engine_args: Mapping[str, Any], steps: tuple[EncoderStep, ...] = ()
    ) -> Rehearsed: ...


@dataclass(slots=True)
class MemoryPrediction(Closing):
    """Asks `rehearsals` from a thread of its own; arguments go on top of `base`. `failure` is why
    the first that ended early could not be rehearsed; failures of type `fatal` are raised instead.
    """

    gpu: Gpu
    rehearsals: Rehearses
    base: EngineArgs = field(default_factory=dict)
    fatal: tuple[type[MmcalibError], ...] = ()
    failure: MmcalibError | None = field(init=False, default=None)
    _thread: ThreadPoolExecutor = field(init=False)
    _begun: dict[str, Future[Rehearsed]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="rehearsal")

    @property
    def count(self) -> int:
        """How many configurations were rehearsed."""
        return len(self._begun)

    def begin(self, engine_args: EngineArgs, steps: Steps = ()) -> Future[Rehearsed]:
        """Rehearse the configuration, then these steps of the encoder; returns at once."""
        key = key_of(engine_args, steps)
        if key not in self._begun:
            full = {**self.base, **engine_args}
            self._begun[key] = self._thread.submit(self.rehearsals.rehearse, full, steps)
        return self._begun[key]

    def after(self, work: Callable[[], T]) -> Future[T]:
        """Have it done once all is done that was begun; returns at once."""
        return self._thread.submit(work)

    def rehearse(self, engine_args: EngineArgs, steps: Steps = ()) -> Rehearsed:
        """Raises EngineError where vLLM refuses, or the configuration cannot be rehearsed."""
        return self.begin(engine_args, steps).result()

    def known(self, engine_args: EngineArgs) -> Rehearsed | MmcalibError | None:
        """The answer, why there is none, or None where nobody has asked."""
        if key_of(engine_args) not in self._begun:
            return None
        try:
            return self.rehearse(engine_args)
        except MmcalibError as error:
            return error

    def rehearse_or_none(self, engine_args: EngineArgs, steps: Steps = ()) -> Rehearsed | None:
        """None where it ends early."""
        try:
            return self.rehearse(engine_args, steps)
        except self.fatal:
            raise
        except MmcalibError as error:
            self.failure = self.failure or error
            return None

    def rehearse_all(
        self,
        every: Sequence[EngineArgs],
        first: Steps = (),
        on_each: Callable[[], None] = lambda: None,
    ) -> list[Rehearsed | None]:
        """These, the first with these steps of the encoder; None where one ends early."""
        wanted = [(args, () if number else first) for number, args in enumerate(every)]
        for args, steps in wanted:
            self.begin(args, steps)
        found = []
        for args, steps in wanted:
            found.append(self.rehearse_or_none(args, steps))
            on_each()
        return found

    def close(self) -> None:
        # Nothing more is asked; what the thread still waits for ends with its process.
        self._thread.shutdown(wait=False, cancel_futures=True)


def key_of(engine_args: EngineArgs, steps: Steps = ()) -> str:
    """The same for the same arguments, in whatever order."""
    return json.dumps([engine_args, repr(steps)], sort_keys=True)


@dataclass(frozen=True, slots=True)
class Predicted:
    """What rehearsals on one GPU found. `points` runs along the decision's explored points; `steps`
    has the worst step of each served modality, and `calibrated` steps of the corpus' own items.

    A figure is None where its rehearsal ended early; `failure` is the first.
    """

    gpu: Gpu
    default: Rehearsed | None
    calibrated: Rehearsed | None = None
    points: tuple[Rehearsed | None, ...] = ()
    steps: Mapping[Modality, Rehearsed] = field(default_factory=dict)
    failure: MmcalibError | None = None
