"""Last step: start the engine, replay real prompts, and start the default for comparison."""

from __future__ import annotations

from pathlib import Path

from mmcalib.derive.checks import Check
from mmcalib.engine.host import SILENCE_S, EngineHost
from mmcalib.errors import EngineDied, EngineError, EngineSilent
from mmcalib.job.calibration.assemble import Findings
from mmcalib.job.proof import replay, startup
from mmcalib.job.proof.sweep import sweep, sweep_check
from mmcalib.job.read import files_of
from mmcalib.job.spec import Job
from mmcalib.progress import Progress

# The comparison is worth less time than the proof; and the estimate is a lower bound.
_COMPARISON_SHARE = 1 / 4

# Without a GPU an engine starts in a minute, in two on a busy machine; then its profile begins.
_START_S = 120.0


def prove(job: Job, known: Findings, scratch: Path, host: EngineHost, progress: Progress) -> None:
    """Start and replay; a failure of the engine is a failed check, not an end of the job."""
    try:
        known.started = startup.start(
            host,
            Path(known.resolved.path),
            known.decision.engine_args,
            known.decision.budget,
            scratch,
            job.startup_budget_s,
            known.opened.device,
            progress,
        )
        known.checks += startup.startup_checks(known.started, known.decision)
        if job.validate == "replay":
            known.burst = replay.choose_burst(
                known.corpus.prompts,
                known.decision,
                known.started,
                job.startup_budget_s,
                scratch,
                files_of(known.corpus, job.probe.timeout_s),
            )
            known.replayed = replay.replay(host, known.burst, progress)
            known.checks.append(
                replay.replay_check(
                    known.burst, known.replayed, known.started.figures.budget_tokens
                )
            )
    except EngineError as error:
        remedy = error.hint if isinstance(error, EngineDied) else "--validate budget starts nothing"
        name = "replay" if known.started else "engine start"
        known.checks.append(Check(name, "fail", error.message, remedy))
        return
    if job.encoder_sweep:
        known.sweep = sweep(host, known.opened, known.decision, job.startup_budget_s, progress)
        known.checks.append(sweep_check(known.sweep))


def start_default(job: Job, known: Findings, scratch: Path, progress: Progress) -> Check:
    """Start the default configuration too, for comparison, where its profile is affordable here."""
    name, started, budget = "default for comparison", known.started, known.decision.default_budget
    if started is None:
        return Check(name, "skip", "the calibrated configuration did not start")
    if known.decision.default_error:
        said = known.decision.default_error
        return Check(name, "warn", f"the default configuration does not start: {said}")
    tokens = budget.encoder_budget_tokens
    seconds = startup.default_seconds(started, known.decision)
    if seconds is None or seconds > job.startup_budget_s * _COMPARISON_SHARE:
        about = f", at least {seconds:.0f} s at the cut depth here" if seconds else ""
        detail = f"not started: its profile would encode {tokens} tokens{about}"
        return Check(name, "skip", f"{detail}; its budget is computed")
    args = {"max_model_len": known.opened.max_model_len}
    path, device = Path(known.resolved.path), known.opened.device
    patience_s = SILENCE_S if device != "cpu" else _START_S + job.startup_budget_s
    try:
        with EngineHost(on_said=progress.note, on_log=progress.log, silence_s=patience_s) as host:
            known.default_started = startup.start(
                host,
                path,
                args,
                budget,
                scratch / "default",
                job.startup_budget_s,
                device,
                progress,
            )
    except EngineSilent:
        detail = f"broken off after {patience_s:.0f} s: it takes longer here than estimated"
        return Check(
            name,
            "skip",
            f"{detail}; its budget is computed",
            "--startup-budget SECONDS allows more",
        )
    except EngineError as error:
        return Check(name, "warn", f"the default configuration does not start: {error.message}")
    peak = known.default_started.figures.activation_peak_bytes
    found = f", activation peak {peak / 2**30:.2f} GiB" if peak is not None else ""
    return Check(name, "pass", f"started too, for comparison{found}, measured")
