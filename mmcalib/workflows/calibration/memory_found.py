"""Sixth stage: memory on the GPU that will serve, rehearsed beside the others until now."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from mmcalib.census.accesses import Accesses
from mmcalib.checks.check import Check
from mmcalib.checks.reserve import RESERVED
from mmcalib.derive.policy import Policy
from mmcalib.derive.pools import FixedPool
from mmcalib.domain.rehearsed import Rehearsed
from mmcalib.errors import MmcalibError
from mmcalib.results.memory import ServedTraffic
from mmcalib.wording import flag, gib
from mmcalib.workflows.calibration.proven import Proven
from mmcalib.workflows.calibration.reviewed import Reviewed
from mmcalib.workflows.calibration.session import Session
from mmcalib.workflows.decision.decision import Decision
from mmcalib.workflows.memory.checks import (
    comparison_check,
    known_in_bytes,
    memory_checks,
    predicted_shortfall,
    reserved_check,
)
from mmcalib.workflows.memory.cured import Ask, cured, with_less_kv_cache
from mmcalib.workflows.memory.explored import begin, predicted, rehearsing
from mmcalib.workflows.memory.pinned import pinned
from mmcalib.workflows.memory.predicted import Predicted
from mmcalib.workflows.memory.retained import views_check
from mmcalib.workflows.memory.tokens_alone import in_tokens, not_rehearsed
from mmcalib.workflows.traffic.beside import (
    ServedBeside,
    StartsWith,
    begin_serving,
    finish_serving,
)


@dataclass(frozen=True, slots=True)
class MemoryFound:
    """`checks` are those of all stages, in bytes where that is known now. Without a GPU nothing was
    rehearsed. `pool` is written where that was asked; `yours` is the user's configuration
    rehearsed, or why it could not be.
    """

    predicted: Predicted | None
    checks: tuple[Check, ...]
    traffic: ServedTraffic | None = None
    pool: FixedPool | None = None
    yours: Rehearsed | MmcalibError | None = None


def begin_memory(session: Session, reviewed: Reviewed) -> ServedBeside | None:
    """Rehearse what the decision needs, and serve the corpus under it, while an engine proves it.
    Returns at once; None without a GPU.
    """
    prediction, decided = session.prediction, reviewed.decided
    if prediction is None or decided.serving is None:
        return None
    begin(prediction, session.default_args, decided.decision)
    return begin_serving(decided.serving, session.default_args, decided.decision.engine_args)


def predict_memory(
    session: Session, reviewed: Reviewed, proven: Proven, beside: ServedBeside | None
) -> MemoryFound:
    """Waits for all that was begun."""
    checks = (*reviewed.checks, *proven.checks)
    if session.prediction is None:
        return MemoryFound(None, checks)
    job, decided = session.job, reviewed.decided
    decision, started = decided.decision, proven.proof.started
    found = predicted(session.prediction, session.default_args, decision, session.progress)
    every = rehearsing(session.prediction, session.progress)
    kept = pinned(found, decision, every) if job.pin_kv_cache else None
    served = found
    if kept is not None and kept.rehearsed is not None:
        served = replace(found, calibrated=kept.rehearsed)
    rehearse = ["mmcalib", "rehearse", "--model", job.model]
    if job.config.source is not None:
        rehearse += ["--config", str(job.config.source)]
    if job.config.flags:
        rehearse += ["--", *job.config.flags]
    judged = in_bytes(
        checks,
        served,
        decision,
        job.policy,
        every,
        decided.served.corpus.accesses,
        shlex.join(rehearse),
    )
    path, wanted = decided.served.resolved.path, job.policy.concurrency
    judged += memory_checks(found, started, path, wanted)
    if kept is not None:
        judged.append(kept.check)
    traffic = None
    if beside is not None:
        with session.progress.step(f"serving requests on {found.gpu.name}"):
            traffic, more = finish_serving(beside, found, _starts_with(decision, every))
        judged += more
    compared = comparison_check(found, traffic, decision, job.policy)
    judged += [compared] if compared is not None else []
    pool = kept.pool if kept else None
    yours = session.prediction.known(session.yours.engine_args) if session.yours else None
    return MemoryFound(found, tuple(judged), traffic, pool, yours)


def _starts_with(decision: Decision, every: Ask) -> StartsWith:
    def starts(share: float) -> bool:
        args = {**decision.engine_args, "gpu_memory_utilization": share}
        (found,) = every([args], ())
        return found is not None and found.kv_cache_tokens is not None

    return starts


def _as_run_takes(values: Mapping[str, int]) -> str:
    """Options of `run`, and vLLM's behind `--`."""
    own = [f"{flag(n)} {v}" for n, v in values.items() if n != "max_num_seqs"]
    seqs = values.get("max_num_seqs")
    return " ".join([*own, *([f"-- --max-num-seqs {seqs}"] if seqs else [])])


def in_bytes(
    checks: Sequence[Check],
    predicted: Predicted,
    decision: Decision,
    policy: Policy,
    every: Ask,
    accesses: Accesses,
    rehearse: str,
) -> list[Check]:
    """The checks with R4 in bytes, where it was rehearsed, options with which it passes, as
    `every` rehearses them, and what cached items keep beyond that; where not, with what tokens
    leave unknown. `rehearse` is the command that rehearses the model.
    """
    found = predicted_shortfall(predicted, decision)
    before = predicted.calibrated
    if found is None or before is None:
        return in_tokens(checks, decision, not_rehearsed(predicted, rehearse))
    cures = []
    if not found.passes:
        cures = [_as_run_takes(cure.engine.values) for cure in cured(found, decision, every)]
        if less := with_less_kv_cache(found, before, decision, every):
            seqs = less.engine.max_num_seqs
            flags = f"--pin-kv-cache -- --max-num-seqs {seqs}" if seqs else "--pin-kv-cache"
            left = (
                f"{gib(less.rehearsed.kv_cache_bytes)}, {less.rehearsed.kv_cache_tokens:,} tokens"
            )
            cures.append(f"{flags}, which leaves a KV cache of {left}")
    allowed = policy.allow_under_reserve
    reserved = reserved_check(predicted, decision, allow_under_reserve=allowed, cures=cures)
    gone = {RESERVED, *known_in_bytes(predicted.calibrated)}
    kept = views_check(predicted, decision, accesses)
    more = [check for check in (reserved, kept) if check is not None]
    return [*(c for c in checks if c.id not in gone), *more]
