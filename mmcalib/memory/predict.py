"""What a decision needs rehearsed; grid pools; pinned."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from mmcalib.checks.catalogue import FIXED_KV_CACHE
from mmcalib.checks.check import Check
from mmcalib.checks.facts import Explored, JudgedConfig
from mmcalib.decision.decision import Decision
from mmcalib.derive.demand import FixedPool, fixed_pool
from mmcalib.domain.memory import Rehearsed
from mmcalib.errors import MmcalibError, VerdictError
from mmcalib.memory.checks import predicted_shortfall, serves_worse, steps_are_larger
from mmcalib.memory.rehearse import EngineArgs, MemoryPrediction, Predicted, Steps
from mmcalib.memory.worst_steps import Ask, configurations, encoder_steps
from mmcalib.progress import Progress
from mmcalib.releases.constants import VLLM_SLACK_BYTES
from mmcalib.results.calibration import Evidence
from mmcalib.results.memory import TrafficFigures
from mmcalib.text import gib, room

# What vLLM (0.28 to 0.33) says of a KV cache that one request does not fit into, and of recurrent
# layers with fewer blocks than sequences.
_NEEDED: Final = re.compile(r"\(([\d.]+ GiB) KV cache is needed")
_FEWER: Final = re.compile(r"max_num_seqs to at most ([1-9]\d*)")
_LONGEST: Final = re.compile(r"estimated maximum model length is ([1-9]\d*)")


def most_sequences(found: Rehearsed) -> int | None:
    """`max_num_seqs` with which vLLM would start, where it refuses the one that it has."""
    fewer = _FEWER.search(found.problem)
    return int(fewer[1]) if fewer else None


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
    if found.kv_cache_tokens is not None or found.budget is None or most_sequences(found):
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
    """Judges decisions by rehearsals on one GPU. `default`: vLLM's defaults with the user's
    settings; `concurrency`: sequences the KV cache must hold; `traffic` serves the corpus' requests
    under rehearsed arguments, None where impossible.
    """

    prediction: MemoryPrediction
    default: EngineArgs
    concurrency: float | None
    progress: Progress
    traffic: Callable[[EngineArgs, Rehearsed | None], TrafficFigures | None]

    def rejects(self, decision: Decision) -> str:
        """It does not start, or holds too few sequences. What cannot be rehearsed does."""
        gpu, found = self.prediction.gpu.name, self._rehearsed(decision.engine_args)
        if found is None:
            return ""
        if found.max_concurrency is None:
            left = f"KV cache {room(found.kv_cache_bytes)}"
            if most_sequences(found):
                left = found.problem
            return f"vLLM would not start on {gpu}: {left}"
        if self.concurrency is not None and found.max_concurrency < self.concurrency:
            return (
                f"{found.max_concurrency:.1f} sequences would fit on {gpu}, "
                f"{self.concurrency:g} are wanted"
            )
        return ""

    def most_sequences(self, decision: Decision) -> int | None:
        found = self._rehearsed(decision.engine_args)
        return most_sequences(found) if found else None

    def kv_tokens(self, decision: Decision) -> int | None:
        found = self._rehearsed(decision.engine_args)
        return None if found is None else found.kv_cache_tokens or 0

    def default_kv_tokens(self) -> int:
        found = self._rehearsed(self.default)
        return 0 if found is None else found.kv_cache_tokens or 0

    def serves_worse(self, decision: Decision) -> bool:
        before, after = (self._rehearsed(args) for args in (self.default, decision.engine_args))
        with self.progress.step(f"serving requests on {self.prediction.gpu.name}"):
            found = self._served(decision.engine_args, after)
            if found is None:
                return False
            larger = steps_are_larger(before, after)
            default = self._served(self.default, before)
            return serves_worse(default, found, larger_steps=larger)

    def _served(self, args: EngineArgs, started: Rehearsed | None) -> TrafficFigures | None:
        try:
            return self.traffic(args, started)
        except MmcalibError:
            return None

    def _rehearsed(self, engine_args: EngineArgs) -> Rehearsed | None:
        with self.progress.step(f"rehearsing on {self.prediction.gpu.name}"):
            return rehearse_trial(self.prediction, engine_args)


def begin_rehearsals(prediction: MemoryPrediction, default: EngineArgs, decision: Decision) -> None:
    """Rehearse all that `rehearse_decision` waits for; returns at once."""
    for args, steps in _wanted_configs(default, decision):
        prediction.begin(args, steps)


def rehearse_decision(
    prediction: MemoryPrediction, default: EngineArgs, decision: Decision, progress: Progress
) -> Predicted:
    """Rehearse default and calibrated config, each modality's worst step and each point once."""
    wanted = _wanted_configs(default, decision)
    answers: list[Rehearsed | None] = []
    with progress.step(f"rehearsing on {prediction.gpu.name}", len(wanted)) as task:
        for args, steps in wanted:
            answers.append(prediction.rehearse_or_none(args, steps))
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


def reporting_ask(prediction: MemoryPrediction, progress: Progress) -> Ask:
    """Rehearses what is asked afterwards, with its progress."""

    def every(every: Sequence[EngineArgs], first: Steps) -> list[Rehearsed | None]:
        with progress.step(f"rehearsing on {prediction.gpu.name}", len(every)) as task:
            return prediction.rehearse_all(every, first, task.advance)

    return every


def _wanted_configs(default: EngineArgs, decision: Decision) -> list[tuple[EngineArgs, Steps]]:
    """In the order of `Predicted`: default, calibrated, worst steps, points."""
    alike: dict[tuple[Any, ...], EngineArgs] = {}
    points = [alike.setdefault(_profile(e), e.engine_args) for e in decision.explored]
    worst = [args for _, args in configurations(decision)]
    return [
        (default, ()),
        (decision.engine_args, encoder_steps(decision)),
        *((args, ()) for args in (*worst, *points)),
    ]


def rehearse_trial(prediction: MemoryPrediction, engine_args: EngineArgs) -> Rehearsed | None:
    """Of a trial: that it fails says nothing of what is calibrated."""
    try:
        return prediction.rehearse(engine_args)
    except MmcalibError:
        return None


def _profile(one: Explored) -> tuple[Any, ...]:
    """What decides its memory, the context last: the rest of its settings does not."""
    budget = one.budget
    modality = budget.profiled_modality
    limits = one.engine_args.get("limit_mm_per_prompt", {})
    # Sizes that vLLM is told to profile.
    hinted = {m: limit for m, limit in limits.items() if isinstance(limit, Mapping)}
    return (
        modality,
        budget.profiled_items,
        budget.max_tokens_per_item.get(modality) if modality else None,
        budget.encoder_cache_size,
        budget.max_num_batched_tokens,
        budget.max_num_seqs,
        json.dumps(hinted, sort_keys=True),
        budget.max_model_len,
    )


_REMEDY = "a smaller --max-model-len, or no --pin-kv-cache"


@dataclass(frozen=True, slots=True)
class PinnedPool:
    """`pool` is None where vLLM would not start with it; else `rehearsed` is what it found."""

    pool: FixedPool | None
    check: Check
    rehearsed: Rehearsed | None = None


def fix_kv_cache(predicted: Predicted, decision: JudgedConfig, ask: Ask) -> PinnedPool | None:
    """Rehearse the size to write, less what serving takes beyond the profile; None without one."""
    short = predicted_shortfall(predicted, decision)
    spared = short.nbytes if short is not None and not short.passes else 0
    pool = fixed_pool(predicted.calibrated, spared) if predicted.calibrated else None
    if pool is None:
        return None
    (found,) = ask([pool.on(decision.engine_args)], encoder_steps(decision))
    if found is None or found.kv_cache_tokens is None:
        why = found.problem if found else "it could not be rehearsed"
        detail = f"{gib(pool.kv_cache_memory_bytes)} are too little, rehearsed: {why}"
        return PinnedPool(None, Check(FIXED_KV_CACHE, "fail", detail, _REMEDY))
    graphs = f", graphs of {len(pool.capture_sizes)} sizes" if pool.capture_sizes else ""
    detail = (
        f"KV cache {gib(pool.kv_cache_memory_bytes)} of {gib(pool.left_bytes)} that are left, "
        f"{found.kv_cache_tokens:,} tokens{graphs}; vLLM takes them as they are, and heeds no "
        "gpu_memory_utilization"
    )
    return PinnedPool(pool, Check(FIXED_KV_CACHE, "pass", detail), found)


def pinned_evidence(pool: FixedPool, gpu: str) -> Iterator[Evidence]:
    """One entry per emitted value."""
    spared = ""
    if pool.spared_bytes:
        spared = f" and {gib(pool.spared_bytes)} for steps that take more than is profiled"
    yield Evidence(
        setting="kv_cache_memory_bytes",
        value=pool.kv_cache_memory_bytes,
        label="rehearsed",
        reason=f"--pin-kv-cache: what rehearsal leaves on {gpu}, less {VLLM_SLACK_BYTES >> 20} MiB "
        f"as vLLM suggests it{spared}; with it vLLM ignores gpu_memory_utilization",
    )
    if pool.capture_sizes:
        yield Evidence(
            setting="cudagraph_capture_sizes",
            value=list(pool.capture_sizes),
            label="rehearsed",
            reason=f"--pin-kv-cache: vLLM's own on {gpu}, so that no start captures more",
        )
