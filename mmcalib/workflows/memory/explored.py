"""The memory of a decision: what of it is rehearsed, and beside the job that goes on."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from mmcalib.domain.budget import Budget
from mmcalib.domain.model import ModelInfo
from mmcalib.domain.rehearsed import Rehearsed
from mmcalib.errors import MmcalibError, VerdictError
from mmcalib.progress import Progress
from mmcalib.wording import gib, room
from mmcalib.workflows.decision.decision import Decision
from mmcalib.workflows.memory.checks import falls_short
from mmcalib.workflows.memory.cured import Ask
from mmcalib.workflows.memory.predicted import Predicted
from mmcalib.workflows.memory.prediction import EngineArgs, MemoryPrediction, Steps
from mmcalib.workflows.memory.rehearse import on_gpu
from mmcalib.workflows.memory.worst_steps import configurations, encoder_steps

Profile = tuple[Any, ...]

# What vLLM (0.28 to 0.33) says of a KV cache that one request does not fit into.
_NEEDED: Final = re.compile(r"\(([\d.]+ GiB) KV cache is needed")
_LONGEST: Final = re.compile(r"estimated maximum model length is ([1-9]\d*)")


class Budgeted(Protocol):
    """Engine arguments with vLLM's budget for them."""

    @property
    def budget(self) -> Budget: ...
    @property
    def engine_args(self) -> EngineArgs: ...


def as_served(opened: ModelInfo, default: EngineArgs, prediction: MemoryPrediction) -> ModelInfo:
    """The opened model with the defaults that `vllm serve` would have on that GPU."""
    return on_gpu(opened, _answer(prediction, default))


def refuse_too_small(prediction: MemoryPrediction, args: EngineArgs, model: str) -> None:
    """Raises VerdictError where vLLM would not start on that GPU whatever the limits: with one
    modality, and none of its items profiled. For the thread of `prediction`.
    """
    args = {**prediction.base, **args, "skip_mm_profiling": True}
    try:
        found = prediction.rehearsals.rehearse(args)
        taken = found.budget.max_items_per_prompt if found.budget else {}
        # vLLM does not load the encoder of a modality that is not served.
        for served in taken if len(taken) > 1 else ():
            if found.kv_cache_tokens is not None:
                return
            limits = {modality: int(modality == served) for modality in taken}
            one = prediction.rehearsals.rehearse({**args, "limit_mm_per_prompt": limits})
            found = max(found, one, key=lambda tried: tried.kv_cache_bytes)
    except MmcalibError:
        return
    if found.kv_cache_tokens is not None or found.budget is None:
        return
    gpu, needed, longest = prediction.gpu, *(p.search(found.problem) for p in (_NEEDED, _LONGEST))
    weights, left = gib(found.weights_bytes), "no room for a KV cache"
    if found.kv_cache_bytes > 0:
        request = f"one request of {found.budget.max_model_len:,} tokens"
        left = f"{gib(found.kv_cache_bytes)} for the KV cache before any media; {request} needs "
        left += needed[1] if needed else "more"
    raise VerdictError(
        f"{model} does not fit on {gpu.name}: its weights, {weights}, leave {left}",
        hint=(f"--max-model-len {longest[1]} or less, " if longest else "")
        + f"a larger --gpu, or what mmcalib plan --model {model} {gpu.flags} finds",
    )


@dataclass(frozen=True, slots=True)
class RehearsalJudge:
    """Judges decisions by rehearsals on one GPU. `default` are vLLM's defaults with what the user
    said; `concurrency` is how many sequences of its context the KV cache must hold; `margin_bytes`
    is what the corpus' own requests leave of a reserve, None where that is not known.
    """

    prediction: MemoryPrediction
    default: EngineArgs
    concurrency: float | None
    progress: Progress
    margin_bytes: Callable[[EngineArgs], int | None]

    def rejects(self, decision: Decision) -> str:
        """It does not start, or holds too few sequences. What cannot be rehearsed does."""
        gpu, found = self.prediction.gpu.name, self._rehearsed(decision.engine_args)
        if found is None:
            return ""
        if found.max_concurrency is None:
            left = room(found.kv_cache_bytes)
            return f"vLLM would not start on {gpu}: KV cache {left}"
        if self.concurrency is not None and found.max_concurrency < self.concurrency:
            return (
                f"{found.max_concurrency:.1f} sequences would fit on {gpu}, "
                f"{self.concurrency:g} are wanted"
            )
        return ""

    def kv_tokens(self, decision: Decision) -> int | None:
        found = self._rehearsed(decision.engine_args)
        return None if found is None else found.kv_cache_tokens or 0

    def default_kv_tokens(self) -> int:
        found = self._rehearsed(self.default)
        return 0 if found is None else found.kv_cache_tokens or 0

    def overruns(self, decision: Decision) -> bool:
        with self.progress.step(f"serving requests on {self.prediction.gpu.name}"):
            left = self.margin_bytes(decision.engine_args)
            return left is not None and falls_short(left, self.margin_bytes(self.default) or 0)

    def _rehearsed(self, engine_args: EngineArgs) -> Rehearsed | None:
        with self.progress.step(f"rehearsing on {self.prediction.gpu.name}"):
            return _answer(self.prediction, engine_args)


def begin(prediction: MemoryPrediction, default: EngineArgs, decision: Decision) -> None:
    """Rehearse all that `predicted` waits for; returns at once."""
    for args, steps in _wanted(default, decision):
        prediction.begin(args, steps)


def predicted(
    prediction: MemoryPrediction, default: EngineArgs, decision: Decision, progress: Progress
) -> Predicted:
    """The default and the calibrated configuration, the worst step of each modality and every point
    of the frontier. Points that vLLM would profile alike are rehearsed once.
    """
    wanted = _wanted(default, decision)
    answers: list[Rehearsed | None] = []
    with progress.step(f"rehearsing on {prediction.gpu.name}", len(wanted)) as task:
        for args, steps in wanted:
            answers.append(prediction.tried(args, steps))
            task.advance()
    before, after, *others = answers
    modalities = [modality for modality, _ in configurations(decision)]
    worst = zip(modalities, others, strict=False)
    return Predicted(
        gpu=prediction.gpu,
        default=before,
        calibrated=after,
        points=tuple(others[len(modalities) :]),
        steps={modality: step for modality, step in worst if step is not None},
        failure=prediction.failure,
    )


def rehearsing(prediction: MemoryPrediction, progress: Progress) -> Ask:
    """Rehearses what is asked afterwards, with its progress."""

    def every(every: Sequence[EngineArgs], first: Steps) -> list[Rehearsed | None]:
        with progress.step(f"rehearsing on {prediction.gpu.name}", len(every)) as task:
            return prediction.every(every, first, task.advance)

    return every


def _wanted(default: EngineArgs, decision: Decision) -> list[tuple[EngineArgs, Steps]]:
    """In the order of `Predicted`: default, calibrated, worst steps, points."""
    alike: dict[Profile, EngineArgs] = {}
    points = [alike.setdefault(profile(e), e.engine_args) for e in decision.explored]
    worst = [args for _, args in configurations(decision)]
    return [
        (default, ()),
        (decision.engine_args, encoder_steps(decision)),
        *((args, ()) for args in (*worst, *points)),
    ]


def _answer(prediction: MemoryPrediction, engine_args: EngineArgs) -> Rehearsed | None:
    """Of a trial: that it fails says nothing of what is calibrated."""
    try:
        return prediction.rehearse(engine_args)
    except MmcalibError:
        return None


def profile(one: Budgeted) -> Profile:
    """What decides its memory, the context last: the rest of its settings does not."""
    budget = one.budget
    modality = budget.profiled_modality
    return (
        modality,
        budget.profiled_items,
        budget.max_tokens_per_item.get(modality) if modality else None,
        budget.encoder_cache_size,
        budget.max_num_batched_tokens,
        budget.max_num_seqs,
        _hints(one.engine_args),
        budget.max_model_len,
    )


def _hints(engine_args: EngineArgs) -> str:
    """Sizes that vLLM is told to profile."""
    limits = engine_args.get("limit_mm_per_prompt", {})
    hinted = {m: limit for m, limit in limits.items() if isinstance(limit, Mapping)}
    return json.dumps(hinted, sort_keys=True) if hinted else ""
