"""Fourth stage: the configuration in a real engine, with the user's items or made-up ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from mmcalib.checks.check import Check
from mmcalib.checks.file import ROUND_TRIP
from mmcalib.checks.reserve import BATCH_HOLDS_ITEM, ENGINE_START
from mmcalib.engine.vllm_config import here, serves
from mmcalib.workflows.proof.prove import Proof, ReplaySource, prove
from mmcalib.workflows.proof.startup import Launch, not_started
from mmcalib.workflows.read import ReadCorpus, files_of
from mmcalib.workflows.validate.examined import Examined
from mmcalib.workflows.validate.items import made_up
from mmcalib.workflows.validate.spec import ValidateSession
from mmcalib.workflows.validate.subject import Subject


@dataclass(frozen=True, slots=True)
class TriedConfig:
    """`subject` has the costs of `corpus`, whose `items` it was tried with."""

    subject: Subject
    corpus: ReadCorpus | None
    items: Literal["none", "corpus", "made up"]
    checks: tuple[Check, ...]
    proof: Proof = field(default_factory=Proof)


def try_config(
    session: ValidateSession, examined: Examined, before: Sequence[Check]
) -> TriedConfig:
    """As far as the job wants it, and not at all where vLLM refuses the file, as `before` says."""
    subject, corpus, depth = examined.subject, examined.corpus, session.job.depth
    items: Literal["none", "corpus", "made up"] = "none" if corpus is None else "corpus"
    refused = any(c.id in (ROUND_TRIP, BATCH_HOLDS_ITEM) and c.status == "fail" for c in before)
    if refused or depth == "budget":
        why = "vLLM refuses the file as it is" if refused else "--validate budget"
        check = Check(ENGINE_START, "skip", f"not started: {why}")
        return TriedConfig(subject, corpus, items, (check,))
    if none := not_started(subject.opened):
        return TriedConfig(subject, corpus, items, (none,))
    if corpus is None and depth == "replay":
        made = made_up(subject, session.host, session.scratch / "media", session.progress)
        if made is not None:
            (subject, corpus), items = made, "made up"
    source = None
    if depth == "replay" and corpus is not None:
        source = ReplaySource(corpus.prompts, files_of(corpus))
    device = subject.opened.device
    launch = Launch(
        Path(subject.resolved.path),
        here(subject.engine_args, device),
        subject.budget,
        device,
        session.scratch,
        session.job.startup_budget_s,
        serves(device, session.job.gpu),
        session.job.gpu is not None,
    )
    remedy = "change what vLLM names"
    proof = prove(session.host, launch, subject, source, session.progress, remedy=remedy)
    return TriedConfig(subject, corpus, items, proof.checks, proof)
