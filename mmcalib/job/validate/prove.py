"""The real engine with the configuration, and the items that it is tried with."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from mmcalib.derive.checks import Check
from mmcalib.engine.host import EngineHost
from mmcalib.engine.messages import Replayed
from mmcalib.errors import EngineDied, EngineError
from mmcalib.job.proof import replay, startup
from mmcalib.job.proof.burst import Burst
from mmcalib.job.proof.startup import Started
from mmcalib.job.read import Corpus, files_of
from mmcalib.job.validate.subject import Subject, here
from mmcalib.progress import Progress


@dataclass(slots=True)
class Proof:
    """What the engine did, as far as it got."""

    started: Started | None = None
    burst: Burst | None = None
    replayed: Replayed | None = None


def prove(
    proof: Proof,
    subject: Subject,
    corpus: Corpus | None,
    host: EngineHost,
    scratch: Path,
    budget_s: float,
    progress: Progress,
) -> Iterator[Check]:
    """Start the engine, then replay the prompts of `corpus`; what fails is a failed check."""
    device = subject.opened.device
    args = here(subject.engine_args, device)
    try:
        path = Path(subject.resolved.path)
        proof.started = startup.start(
            host, path, args, subject.budget, scratch, budget_s, device, progress
        )
        first, *others = startup.startup_checks(proof.started, subject)
        left_out = [name for name in subject.engine_args if name not in args]
        if left_out:
            less = f"{first.detail}; left out here, without a GPU: {', '.join(left_out)}"
            first = replace(first, detail=less)
        yield first
        yield from others
        if corpus is None:
            return
        proof.burst = replay.choose_burst(
            corpus.prompts, subject, proof.started, budget_s, scratch, files_of(corpus)
        )
        proof.replayed = replay.replay(host, proof.burst, progress)
        tokens = proof.started.figures.budget_tokens
        yield replay.replay_check(proof.burst, proof.replayed, tokens)
    except EngineError as error:
        remedy = error.hint if isinstance(error, EngineDied) else "change what vLLM names"
        name = "replay" if proof.started else "engine start"
        yield Check(name, "fail", error.message, remedy)
