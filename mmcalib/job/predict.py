"""Memory on the GPU that will serve: rehearsed beside the job, while it measures and proves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any

from mmcalib.engine.messages import Budget, ModelOpened, Rehearsed
from mmcalib.errors import MmcalibError
from mmcalib.gpus.gpu import Gpu
from mmcalib.job.decide import Decision, Explored
from mmcalib.job.rehearse import Rehearsals
from mmcalib.progress import Progress


@dataclass(frozen=True, slots=True)
class Predicted:
    """What rehearsals on one GPU found. `points` runs along the decision's explored points.

    A figure is None where its rehearsal ended early; `problem` is the first reason.
    """

    gpu: Gpu
    default: Rehearsed | None
    calibrated: Rehearsed | None = None
    points: tuple[Rehearsed | None, ...] = ()
    problem: str = ""


@dataclass(slots=True)
class Predictor:
    """One imaginary GPU in a process of its own, asked from a thread of its own."""

    gpu: Gpu
    model_path: str
    progress: Progress
    _rehearsals: Rehearsals = field(init=False)
    _thread: ThreadPoolExecutor = field(init=False)
    _default: Future[Rehearsed] = field(init=False)
    _points: list[Future[Rehearsed]] = field(init=False, default_factory=list)
    _calibrated: Future[Rehearsed] | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self._rehearsals = Rehearsals(self.gpu)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="rehearsal")

    def begin(self, args: Mapping[str, Any]) -> None:
        """Rehearse the default configuration; returns at once."""
        self._default = self._ask(args)

    def serve_defaults(self, opened: ModelOpened) -> ModelOpened:
        """The opened model with the defaults that `vllm serve` would have on that GPU."""
        try:
            budget = self._default.result().budget
        except MmcalibError:
            return opened
        if budget is None:
            return opened
        defaults = {
            "max_num_batched_tokens": budget.max_num_batched_tokens,
            "max_num_seqs": budget.max_num_seqs,
        }
        return replace(opened, serve_defaults=defaults)

    def explore(self, decision: Decision) -> None:
        """Rehearse the calibrated configuration and every point of the frontier; returns at once.

        Points that vLLM would profile alike are rehearsed once.
        """
        self._calibrated = self._ask(decision.engine_args)
        alike: dict[tuple[Any, ...], Future[Rehearsed]] = {}
        for explored in decision.explored:
            key = _profile(explored)
            if key not in alike:
                alike[key] = self._ask(explored.engine_args)
            self._points.append(alike[key])

    def found(self) -> Predicted:
        """Wait for everything that was asked."""
        asked = [self._default, *filter(None, [self._calibrated]), *self._points]
        with self.progress.step(f"rehearsing on {self.gpu.name}", len(asked)) as task:
            answers = []
            for future in asked:
                answers.append(_answer(future))
                task.advance()
        problems = [words for _, words in answers if words]
        results = [result for result, _ in answers]
        return Predicted(
            gpu=self.gpu,
            default=results[0],
            calibrated=results[1] if self._calibrated else None,
            points=tuple(results[2:]),
            problem=problems[0] if problems else "",
        )

    def _ask(self, args: Mapping[str, Any]) -> Future[Rehearsed]:
        return self._thread.submit(self._rehearsals.rehearse, {"model": self.model_path, **args})

    def __enter__(self) -> Predictor:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # The child first: whatever the thread waits for then ends.
        self._thread.shutdown(wait=False, cancel_futures=True)
        self._rehearsals.close()


def _answer(future: Future[Rehearsed]) -> tuple[Rehearsed | None, str]:
    try:
        return future.result(), ""
    except MmcalibError as error:
        return None, error.message


def _profile(explored: Explored) -> tuple[Any, ...]:
    """What decides the memory of a point: the rest of its settings does not."""
    budget: Budget = explored.budget
    modality = budget.profiled_modality
    sizes: Sequence[Any] = (
        modality,
        budget.profiled_items,
        budget.max_tokens_per_item.get(modality or ""),
        budget.encoder_cache_size,
        budget.max_num_batched_tokens,
        budget.max_num_seqs,
        budget.max_model_len,
    )
    return tuple(sizes)
