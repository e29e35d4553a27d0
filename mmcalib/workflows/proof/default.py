"""The default configuration started too, to compare with."""

from __future__ import annotations

from dataclasses import dataclass

from mmcalib.checks.catalogue.engine import DEFAULT_COMPARED
from mmcalib.checks.check import Check
from mmcalib.engine.host import SILENCE_S, EngineHost
from mmcalib.errors import EngineError, EngineSilent, VllmMoved
from mmcalib.progress import Progress
from mmcalib.wording import gib
from mmcalib.workflows.decision.decision import Decision
from mmcalib.workflows.proof import startup
from mmcalib.workflows.proof.startup import Launch, Started

# The comparison is worth less time than the proof; and the estimate is a lower bound.
_COMPARISON_SHARE = 1 / 4

# Without a GPU an engine starts in a minute, in two on a busy machine; then its profile begins.
_START_S = 120.0


@dataclass(frozen=True, slots=True)
class DefaultStart:
    """`started` is None where it was not tried, or did not come up; `check` says why."""

    check: Check
    started: Started | None = None


def start_default(
    launch: Launch, started: Started | None, decision: Decision, progress: Progress
) -> DefaultStart:
    """Start the default, which is `launch`, where its profile is affordable here by what the
    calibrated one took, which is `started`.
    """
    name = DEFAULT_COMPARED
    if started is None:
        return DefaultStart(Check(name, "skip", "the calibrated configuration did not start"))
    if decision.default_error:
        detail = f"the default configuration does not start: {decision.default_error}"
        return DefaultStart(Check(name, "warn", detail))
    tokens = launch.budget.encoder_budget_tokens
    seconds = startup.default_seconds(started, decision)
    if seconds is None or seconds > launch.budget_s * _COMPARISON_SHARE:
        about = f", at least {seconds:.0f} s at the cut depth here" if seconds else ""
        detail = f"not started: its profile would encode {tokens} tokens{about}"
        return DefaultStart(Check(name, "skip", f"{detail}; its budget is computed"))
    patience_s = SILENCE_S if launch.device != "cpu" else _START_S + launch.budget_s
    try:
        with EngineHost(on_said=progress.note, on_log=progress.log, silence_s=patience_s) as host:
            default = startup.start(host, launch, progress)
    except EngineSilent:
        detail = f"broken off after {patience_s:.0f} s: it takes longer here than estimated"
        more = "--startup-budget SECONDS allows more"
        return DefaultStart(Check(name, "skip", f"{detail}; its budget is computed", more))
    except VllmMoved as error:
        return DefaultStart(Check(name, "skip", f"not compared: {error.message}", error.hint))
    except EngineError as error:
        detail = f"the default configuration does not start: {error.message}"
        return DefaultStart(Check(name, "warn", detail))
    peak = default.figures.activation_peak_bytes
    found = f", activation peak {gib(peak)}" if peak is not None else ""
    detail = f"started too, for comparison{found}, measured"
    return DefaultStart(Check(name, "pass", detail), default)
