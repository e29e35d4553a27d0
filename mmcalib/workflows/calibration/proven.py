"""Fifth stage: the configuration read back by vLLM, in a real engine, and beside the default."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from mmcalib.checks.catalogue.engine import ENGINE_START
from mmcalib.checks.check import Check
from mmcalib.files import write_text
from mmcalib.workflows.calibration.reviewed import Reviewed
from mmcalib.workflows.calibration.session import Session
from mmcalib.workflows.here import here, serves
from mmcalib.workflows.proof.default import start_default
from mmcalib.workflows.proof.prove import Proof, ReplaySource, prove
from mmcalib.workflows.proof.round_trip import round_trip
from mmcalib.workflows.proof.startup import Launch, Started, not_started
from mmcalib.workflows.proof.sweep import Sweep, sweep, sweep_check


@dataclass(frozen=True, slots=True)
class Proven:
    """What engines did, as far as any were started."""

    proof: Proof = field(default_factory=Proof)
    sweep: Sweep | None = None
    default_started: Started | None = None
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
    if not job.encoder_sweep or proof.started is None or proof.failure is not None:
        return Proven(proof, checks=tuple(checks))
    swept = sweep(session.host, served.opened, decision, job.startup_budget_s, session.progress)
    return Proven(proof, swept, checks=(*checks, sweep_check(swept)))


def beside_default(session: Session, reviewed: Reviewed, found: Proven) -> Proven:
    """With the default configuration, where an engine was wanted. The first one goes for it: they
    would share the machine's memory.
    """
    opened = reviewed.decided.served.opened
    if session.job.validate not in ("startup", "replay") or not opened.starts_engines:
        return found
    session.host.close()
    decided = reviewed.decided
    launch = replace(
        _launch(session, reviewed),
        engine_args={
            "max_model_len": decided.served.opened.max_model_len,
            **here(session.given, opened.device),
        },
        budget=decided.decision.default_budget,
        scratch=session.scratch / "default",
    )
    default = start_default(launch, found.proof.started, decided.decision, session.progress)
    checks = (*found.checks, default.check)
    return replace(found, default_started=default.started, checks=checks)


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
    )
