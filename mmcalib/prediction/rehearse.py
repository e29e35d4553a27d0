"""Rehearse configurations on a simulated GPU, several at a time, and report their memory."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, TypeVar

from mmcalib.domain.knobs import Label
from mmcalib.domain.memory import Budget, EncoderStep, RehearsedMemory
from mmcalib.domain.model import ModelInfo
from mmcalib.domain.shapes import Modality
from mmcalib.domain.traffic import Arrivals, Traffic, TrafficRequest
from mmcalib.engine import messages as m
from mmcalib.engine.host import CachingHost
from mmcalib.errors import MmcalibError
from mmcalib.limits.costs import CostTable
from mmcalib.limits.values import CACHE, ProfileReserve, compute_reserve, resident_items
from mmcalib.models.gpus import Gpu
from mmcalib.models.resolve import ResolvedModel
from mmcalib.processes import Closing
from mmcalib.progress import Progress, Silent
from mmcalib.releases.constants import UNIFIED_NON_TORCH_BYTES
from mmcalib.results.memory import EncoderBudget, Memory, Rehearsal
from mmcalib.version import __version__

EngineArgs = Mapping[str, Any]
Steps = tuple[EncoderStep, ...]
T = TypeVar("T")


class Rehearsals(CachingHost):
    """A process with one simulated GPU; it rehearses any number of configurations.

    `beside_bytes` are what a measured start took beyond its rehearsal: all others take them too.
    """

    beside_bytes: int = 0

    def __init__(self, gpu: Gpu, on_log: Callable[[str], None] = lambda _: None, **how: Any):
        self.gpu = gpu
        super().__init__(on_log=lambda line: on_log(f"rehearsal: {line}"), **how)

    def ask(self, request: m.Request[m.R], doing: str) -> m.R:
        """Send one request; vLLM's parser and defaults are those of the simulated GPU."""
        if isinstance(request, m.ParseServeConfig | m.ListServeOptions):
            self.start_simulated_gpu()
        return super().ask(request, doing)

    def start_simulated_gpu(self) -> None:
        """Import vLLM on the simulated platform, once."""
        self.ask(m.UseImaginaryGpu(self.gpu), f"simulating a {self.gpu.name}")

    def rehearse(self, engine_args: EngineArgs, steps: Steps = ()) -> RehearsedMemory:
        """Rehearse vLLM's startup, then these encoder steps. Raises EngineError if it fails."""
        request = m.Rehearse(dict(engine_args), self.gpu, steps, self.beside_bytes)
        return self.ask(request, f"rehearsing on {self.gpu.name}")

    def serve(
        self, engine_args: EngineArgs, requests: Sequence[TrafficRequest], arrivals: Arrivals
    ) -> Traffic:
        """Serve the requests under these arguments. Raises EngineError if serving ends early."""
        request = m.ServeTraffic(dict(engine_args), tuple(requests), arrivals, self.gpu)
        return self.ask(request, f"serving on {self.gpu.name}")


def with_gpu_defaults(opened: ModelInfo, rehearsed: RehearsedMemory | None) -> ModelInfo:
    """Return the opened model with the defaults of `vllm serve` on the rehearsed GPU."""
    if rehearsed is None or rehearsed.budget is None:
        return opened
    defaults = {
        "max_num_batched_tokens": rehearsed.budget.max_num_batched_tokens,
        "max_num_seqs": rehearsed.budget.max_num_seqs,
    }
    return replace(opened, serve_defaults=defaults)


@dataclass(slots=True)
class MemoryPrediction(Closing):
    """Rehearses over `base`, in a thread. `failure` is the first error, if no `fatal` one."""

    gpu: Gpu
    rehearsals: Rehearsals
    base: EngineArgs = field(default_factory=dict)
    fatal: tuple[type[MmcalibError], ...] = ()
    progress: Progress = field(default_factory=Silent)
    failure: MmcalibError | None = field(init=False, default=None)
    _thread: ThreadPoolExecutor = field(init=False)
    _begun: dict[tuple[str, Steps], Future[RehearsedMemory]] = field(
        init=False, default_factory=dict
    )

    def __post_init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="rehearsal")

    @property
    def count(self) -> int:
        """Number of rehearsed configurations."""
        return len(self._begun)

    def start(self, engine_args: EngineArgs, steps: Steps = ()) -> Future[RehearsedMemory]:
        """Start rehearsing the configuration and then these encoder steps; returns at once."""
        if not steps and (begun := self._find(engine_args)):
            return begun
        key = arguments_key(engine_args), steps
        if key not in self._begun:
            full = {**self.base, **engine_args}
            self._begun[key] = self._thread.submit(self.rehearsals.rehearse, full, steps)
        return self._begun[key]

    def run_after(self, work: Callable[[], T]) -> Future[T]:
        """Run `work` after all rehearsals started so far; returns at once."""
        return self._thread.submit(work)

    def rehearse(self, engine_args: EngineArgs, steps: Steps = ()) -> RehearsedMemory:
        """Rehearse and wait. Raises EngineError if vLLM rejects it or the rehearsal fails."""
        return self.start(engine_args, steps).result()

    def find_result(self, engine_args: EngineArgs) -> RehearsedMemory | MmcalibError | None:
        """Return a rehearsal, with any steps, or its error; None if none was started."""
        begun = self._find(engine_args)
        try:
            return begun.result() if begun else None
        except MmcalibError as error:
            return error

    def _find(self, engine_args: EngineArgs) -> Future[RehearsedMemory] | None:
        wanted = arguments_key(engine_args)
        return next((future for (key, _), future in self._begun.items() if key == wanted), None)

    def rehearse_or_none(
        self, engine_args: EngineArgs, steps: Steps = ()
    ) -> RehearsedMemory | None:
        """Rehearse; return None and remember the error if it fails."""
        try:
            return self.rehearse(engine_args, steps)
        except self.fatal:
            raise
        except MmcalibError as error:
            self.failure = self.failure or error
            return None

    def attempt(self, engine_args: EngineArgs, steps: Steps = ()) -> RehearsedMemory | None:
        """Rehearse a trial; its failure does not count against any configuration."""
        with self.progress.step(f"rehearsing on {self.gpu.name}"):
            try:
                return self.rehearse(engine_args, steps)
            except MmcalibError:
                return None

    def rehearse_all(
        self, every: Sequence[EngineArgs], first: Steps = ()
    ) -> list[RehearsedMemory | None]:
        """Rehearse all, the `first` encoder steps with the first one; None for one that fails."""
        wanted = [(args, () if number else first) for number, args in enumerate(every)]
        for args, steps in wanted:
            self.start(args, steps)
        return self.rehearse_each(wanted)

    def rehearse_each(
        self, wanted: Sequence[tuple[EngineArgs | None, Steps]]
    ) -> list[RehearsedMemory | None]:
        """Rehearse these with their steps, in order; None for none, and for one that fails."""
        answers = []
        with self.progress.step(f"rehearsing on {self.gpu.name}", len(wanted)) as task:
            for args, steps in wanted:
                answers.append(None if args is None else self.rehearse_or_none(args, steps))
                task.advance()
        return answers

    def close(self) -> None:
        # The running rehearsal ends with its process.
        self._thread.shutdown(wait=False, cancel_futures=True)


def arguments_key(engine_args: EngineArgs) -> str:
    """Return a key that ignores the arguments' order, and the processor cache in host memory."""
    return json.dumps({n: v for n, v in engine_args.items() if n != CACHE}, sort_keys=True)


@dataclass(frozen=True, slots=True)
class Predicted:
    """Rehearsals on one GPU. `points` follows the decision's explored points; `steps` has the
    worst step of each served modality; `calibrated` includes steps of the corpus' own items.

    A failed rehearsal is None; `failure` is the first error.
    """

    gpu: Gpu
    default: RehearsedMemory | None
    calibrated: RehearsedMemory | None = None
    points: tuple[RehearsedMemory | None, ...] = ()
    steps: Mapping[Modality, RehearsedMemory] = field(default_factory=dict)
    failure: MmcalibError | None = None


# Labels of the figures in a rehearsal that are not rehearsed.
_LABELS: Final[dict[str, Label]] = {
    **dict.fromkeys(("non_torch_bytes", "cudagraph_bytes"), "assumed"),
    **dict.fromkeys(("kv_cache_bytes", "kv_cache_tokens"), "computed"),
    **dict.fromkeys(("max_concurrency", "encoder_cache_bytes", "outside_bytes"), "computed"),
    **dict.fromkeys(("most_utilization", "starts", "stack_bytes"), "computed"),
    "free_bytes": "assumed",
}


def memory_figures(result: RehearsedMemory, gpu: Gpu) -> Memory:
    """Return a memory entry of calibration.json, each figure with its label."""
    phases = {phase.name: phase.peak_bytes for phase in result.phases}
    if result.prefill is not None:
        phases["language model, served"] = result.prefill.phase.peak_bytes
    total: Label = "given" if gpu.total_status == "given" else "assumed"
    most = result.max_concurrency
    room, (low, high) = result.kv_cache_bytes + result.non_torch_bytes, UNIFIED_NON_TORCH_BYTES
    return Memory.from_value(
        result,
        phases=phases,
        mode="extensible" if result.division.is_extensible else "profiled",
        max_concurrency=None if most is None else round(most, 2),
        label="rehearsed",
        kv_cache_range_bytes=(room - high, room - low) if gpu.unified else None,
        labels={
            "total_bytes": total,
            **_LABELS,
            **({} if gpu.free_bytes is None else {"free_bytes": "given"}),
        },
        gpu=gpu.name,
        ranks=result.tensor_parallel_size,
        note=result.start_problem or result.problem,
    )


def budget_figures(
    budget: Budget, reserve: ProfileReserve | None = None, table: CostTable | None = None
) -> EncoderBudget:
    """Return vLLM's MultiModalBudget for reports, with the reserve and residency by `table`."""
    resident = resident_items(table, budget) if table else ()
    return EncoderBudget.from_value(
        budget,
        profiled_tokens=reserve.profiled_tokens if reserve else None,
        worst_step_tokens=reserve.worst_step_tokens if reserve else None,
        resident_items={r.modality: r.items for r in resident},
    )


def rehearsed_adequacy(result: RehearsedMemory, budget: Budget) -> ProfileReserve:
    """Return the reserve in tokens: the profile against the largest step that is admitted."""
    unprofiled = replace(budget, profiled_modality=None)
    worst = compute_reserve(unprofiled, budget.max_items_per_prompt).worst_step_tokens
    if not budget.max_tokens_per_item:  # Embeddings alone may fill the budget.
        worst = budget.encoder_budget_tokens
    return ProfileReserve(result.encoder_tokens, worst)


def rehearsal_document(
    result: RehearsedMemory, model: ResolvedModel, gpu: Gpu, config: Path | None
) -> Rehearsal:
    """Return the document of one rehearsal."""
    budget = result.budget
    return Rehearsal.from_value(
        result,
        mmcalib=__version__,
        model=model.id,
        source=model.source,
        config="" if config is None else str(config),
        gpu=gpu.name,
        capability=gpu.compute_capability,
        starts=result.starts,
        memory=memory_figures(result, gpu),
        budget=budget_figures(budget, rehearsed_adequacy(result, budget)) if budget else None,
        max_model_len=budget.max_model_len if budget else None,
        assumptions=[*result.assumptions, *model.notes],
        seconds=round(result.seconds, 2),
    )
