"""Fifth stage: the configuration read back by vLLM, and in a real engine."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from mmcalib.checks.check import Check
from mmcalib.checks.reserve import ENGINE_START
from mmcalib.engine.vllm_config import here, serves
from mmcalib.files import write_text
from mmcalib.workflows.calibration.reviewed import Reviewed
from mmcalib.workflows.calibration.session import Session
from mmcalib.workflows.proof.prove import Proof, ReplaySource, prove
from mmcalib.workflows.proof.round_trip import round_trip
from mmcalib.workflows.proof.startup import Launch, not_started


@dataclass(frozen=True, slots=True)
class Proven:
    """What engines did, as far as any were started."""

    proof: Proof = field(default_factory=Proof)
    checks: tuple[Check, ...] = ()


def prove_decision(session: Session, reviewed: Reviewed, engine_yaml: str) -> Proven:
    """Read `engine_yaml` back, start the engine and replay, as far as the job wants it."""
    job, decided = session.job, reviewed.decided
    checks = []
    if job.validate != "none":
        path = session.scratch / "engine.yaml"
        write_text(path, engine_yaml)
        checks.append(round_trip(session.host, path, decided.engine_config))
    if job.validate not in ("startup", "replay"):
        detail = f"not asked for: --validate {job.validate}"
        checks.append(Check(ENGINE_START, "skip", detail, "--validate replay"))
        return Proven(checks=tuple(checks))
    if none := not_started(decided.served.opened):
        return Proven(checks=(*checks, none))
    served, decision = decided.served, decided.decision
    proof = prove(
        session.host,
        _launch(session, reviewed),
        decision,
        ReplaySource(served.corpus.prompts, served.files) if job.validate == "replay" else None,
        session.progress,
        remedy="--validate budget starts nothing",
    )
    checks += proof.checks
    return Proven(proof, checks=tuple(checks))


def _launch(session: Session, reviewed: Reviewed) -> Launch:
    served, decision = reviewed.decided.served, reviewed.decided.decision
    return Launch(
        Path(served.resolved.path),
        here(decision.engine_args, served.opened.device),
        decision.budget,
        served.opened.device,
        session.scratch,
        session.job.startup_budget_s,
        serves(served.opened.device, session.job.gpu),
        session.prediction is not None,
    )
