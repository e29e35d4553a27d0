"""The real engine with a configuration, and the prompts that it is tried with."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from mmcalib.census.prompts import PromptCensus
from mmcalib.checks.check import Check, CheckId
from mmcalib.checks.facts import Configuration
from mmcalib.checks.reserve import ENGINE_START, REPLAY
from mmcalib.engine.host import EngineHost
from mmcalib.engine.messages import Replayed
from mmcalib.errors import EngineDied, EngineError, OutputError, VllmMoved
from mmcalib.processes.free_memory import exhausted, free_bytes
from mmcalib.progress import Progress
from mmcalib.wording import gib
from mmcalib.workflows.media_files import Files
from mmcalib.workflows.proof import replay, startup
from mmcalib.workflows.proof.burst import Burst
from mmcalib.workflows.proof.startup import Launch, Started


@dataclass(frozen=True, slots=True)
class Proof:
    """What the engine did, as far as it got; `failure` is what ended it early."""

    started: Started | None = None
    burst: Burst | None = None
    replayed: Replayed | None = None
    checks: tuple[Check, ...] = ()
    failure: Exception | None = None


@dataclass(frozen=True, slots=True)
class ReplaySource:
    """The prompts that may be replayed, and what hands their media to vLLM."""

    prompts: PromptCensus
    files: Files


def prove(
    host: EngineHost,
    launch: Launch,
    configuration: Configuration,
    source: ReplaySource | None,
    progress: Progress,
    *,
    remedy: str,
) -> Proof:
    """Start the engine, then replay prompts of `source`; what fails is a failed check with
    `remedy`, and no end of the job. What this release cannot be asked for is not proven, and no
    more. Too little memory or disk of a machine that does not serve is no failure: it is skipped.

    `launch` may leave out arguments of the configuration, which the check of the start then names.
    """
    proof, free = Proof(), free_bytes()
    try:
        started = startup.start(host, launch, progress)
        proof = Proof(started, checks=tuple(_start_checks(started, launch, configuration)))
        if source is None:
            return proof
        burst = replay.choose_burst(
            source.prompts, configuration, started, launch.budget_s, launch.scratch, source.files
        )
        replayed = replay.replay(host, burst, progress)
        if not launch.serves:
            burst, replayed = replay.leave_out_exhausting(burst, replayed)
        check = replay.replay_check(burst, replayed, started.figures.budget_tokens)
        proof = replace(proof, checks=(*proof.checks, check))
        if replay.without_template(replayed):
            return proof
        return replace(proof, burst=burst, replayed=replayed)
    except VllmMoved as error:
        name = REPLAY if proof.started else ENGINE_START
        unproven = Check(name, "warn", f"not proven: {error.message}", error.hint)
        return replace(proof, checks=(*proof.checks, unproven))
    except (EngineError, OutputError, OSError, MemoryError) as error:
        name = REPLAY if proof.started else ENGINE_START
        failed = _beyond_machine(name, error, launch, free, remedy)
        if failed is None:
            if not isinstance(error, EngineError):
                raise
            # What ended it, such as too little memory, is gone where nothing is started.
            cure = f"{remedy}; {error.hint}" if isinstance(error, EngineDied) else remedy
            failed = Check(name, "fail", error.message, cure)
        return replace(proof, checks=(*proof.checks, failed), failure=error)


def _beyond_machine(
    name: CheckId, error: Exception, launch: Launch, free: int | None, remedy: str
) -> Check | None:
    """The check where this machine had too little, and is not the one that serves."""
    lacking = error.exhausted if isinstance(error, EngineError) else exhausted(error)
    if not lacking or launch.serves:
        return None
    what = "replayed" if name == REPLAY else "started"
    why = error.reason if isinstance(error, EngineError) else str(error)
    if isinstance(error, EngineDied) and free is not None:
        why = f"{gib(free)} free before; {why}"
    detail = f"not {what}: this machine ran out of {lacking} ({why})"
    return Check(name, "skip", detail, f"run where more {lacking} is free, or {remedy}")


def _start_checks(
    started: Started, launch: Launch, configuration: Configuration
) -> Iterator[Check]:
    first, *others = startup.startup_checks(started, configuration, rehearsed=launch.rehearsed)
    left_out = [name for name in configuration.engine_args if name not in launch.engine_args]
    if left_out:
        less = f"{first.detail}; left out here, without a GPU: {', '.join(left_out)}"
        first = replace(first, detail=less)
    yield first
    yield from others
