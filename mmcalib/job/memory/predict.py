"""Memory on the GPU that will serve: rehearsed beside the job, while it measures and proves."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from mmcalib.closing import Closing
from mmcalib.domain.model import ModelInfo
from mmcalib.domain.rehearsed import EncoderStep, Rehearsed
from mmcalib.domain.shapes import Modality
from mmcalib.errors import MmcalibError
from mmcalib.gpus.gpu import Gpu
from mmcalib.job.decision.decide import Unsuited
from mmcalib.job.decision.decision import Decision
from mmcalib.job.decision.explore import Explored
from mmcalib.job.memory.rehearse import Rehearsals, on_gpu
from mmcalib.job.memory.worst_steps import configurations, encoder_steps
from mmcalib.progress import Progress
from mmcalib.wording import gib

Steps = tuple[EncoderStep, ...]


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


@dataclass(slots=True)
class Predictor(Closing):
    """One imaginary GPU in a process of its own, asked from a thread of its own."""

    gpu: Gpu
    model_path: str
    progress: Progress
    _rehearsals: Rehearsals = field(init=False)
    _thread: ThreadPoolExecutor = field(init=False)
    _default: Future[Rehearsed] = field(init=False)
    _points: list[Future[Rehearsed]] = field(init=False, default_factory=list)
    _calibrated: Future[Rehearsed] | None = field(init=False, default=None)
    _steps: dict[Modality, Future[Rehearsed]] = field(init=False, default_factory=dict)
    _asked: dict[str, Future[Rehearsed]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self._rehearsals = Rehearsals(self.gpu, on_log=self.progress.log)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="rehearsal")

    def begin(self, args: Mapping[str, Any]) -> None:
        """Rehearse the default configuration; returns at once."""
        self._default = self._ask(args)

    def serve_defaults(self, opened: ModelInfo) -> ModelInfo:
        """The opened model with the defaults that `vllm serve` would have on that GPU."""
        rehearsed, _ = _answer(self._default)
        return on_gpu(opened, rehearsed)

    def unsuited(self, concurrency: float | None) -> Unsuited:
        """Why a decision's configuration does not do on this GPU: it does not start, or holds fewer
        than `concurrency` sequences of its context. What cannot be rehearsed does.
        """

        def reason(decision: Decision) -> str:
            with self.progress.step(f"rehearsing on {self.gpu.name}"):
                found, _ = _answer(self._ask(decision.engine_args))
            if found is None:
                return ""
            if found.max_concurrency is None:
                left = gib(found.kv_cache_bytes)
                return f"vLLM would not start on {self.gpu.name}: {left} left for its KV cache"
            if concurrency is not None and found.max_concurrency < concurrency:
                return (
                    f"{found.max_concurrency:.1f} sequences would fit on {self.gpu.name}, "
                    f"{concurrency:g} are wanted"
                )
            return ""

        return reason

    def explore(self, decision: Decision) -> None:
        """Rehearse the calibrated configuration, the worst step of each modality and every point
        of the frontier; returns at once. Points that vLLM would profile alike are rehearsed once.
        """
        self._calibrated = self._ask(decision.engine_args, encoder_steps(decision))
        self._steps = {m: self._ask(args) for m, args in configurations(decision)}
        alike: dict[tuple[Any, ...], Future[Rehearsed]] = {}
        for explored in decision.explored:
            key = _profile(explored)
            if key not in alike:
                alike[key] = self._ask(explored.engine_args)
            self._points.append(alike[key])

    def found(self) -> Predicted:
        """Wait for everything that was asked."""
        if self._calibrated is None:
            raise RuntimeError("nothing was explored")
        asked = [self._default, self._calibrated, *self._steps.values(), *self._points]
        with self.progress.step(f"rehearsing on {self.gpu.name}", len(asked)) as task:
            answers = []
            for future in asked:
                answers.append(_answer(future))
                task.advance()
        failures = (failure for _, failure in answers if failure)
        default, calibrated, *others = [result for result, _ in answers]
        steps = zip(self._steps, others, strict=False)
        return Predicted(
            gpu=self.gpu,
            default=default,
            calibrated=calibrated,
            points=tuple(others[len(self._steps) :]),
            steps={modality: step for modality, step in steps if step is not None},
            failure=next(failures, None),
        )

    def more(self, every: Sequence[Mapping[str, Any]], first: Steps = ()) -> list[Rehearsed | None]:
        """Rehearse these too, the first with these steps of the encoder, and wait for them; None
        where one ends early.
        """
        asked = [self._ask(args, () if n else first) for n, args in enumerate(every)]
        with self.progress.step(f"rehearsing on {self.gpu.name}", len(asked)) as task:
            found = []
            for future in asked:
                found.append(_answer(future)[0])
                task.advance()
        return found

    def _ask(self, args: Mapping[str, Any], steps: Steps = ()) -> Future[Rehearsed]:
        """The same arguments are rehearsed once."""
        key = json.dumps([args, repr(steps)], sort_keys=True)
        if key not in self._asked:
            full = {"model": self.model_path, **args}
            self._asked[key] = self._thread.submit(self._rehearsals.rehearse, full, steps)
        return self._asked[key]

    def close(self) -> None:
        # Nothing more is asked; what the thread still waits for ends with the child.
        self._thread.shutdown(wait=False, cancel_futures=True)
        self._rehearsals.close()


def _answer(future: Future[Rehearsed]) -> tuple[Rehearsed | None, MmcalibError | None]:
    try:
        return future.result(), None
    except MmcalibError as error:
        return None, error


def _profile(explored: Explored) -> tuple[Any, ...]:
    """What decides the memory of a point: the rest of its settings does not."""
    budget = explored.budget
    modality = budget.profiled_modality
    return (
        modality,
        budget.profiled_items,
        budget.max_tokens_per_item.get(modality or ""),
        budget.encoder_cache_size,
        budget.max_num_batched_tokens,
        budget.max_num_seqs,
        budget.max_model_len,
    )
