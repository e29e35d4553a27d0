"""The whole job, as the library call and as what `mmcalib run` shows."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import platformdirs

from mmcalib.census.census import Census
from mmcalib.census.prompts import PromptCensus
from mmcalib.census.sample import choose
from mmcalib.corpus.item import Skipped
from mmcalib.derive.checks import Check
from mmcalib.derive.policy import Policy
from mmcalib.engine.host import EngineHost
from mmcalib.engine.messages import ModelOpened, OpenModel
from mmcalib.errors import CorpusError, EngineDied, EngineError, ModelError, UsageError
from mmcalib.geometry import ResolvedModel, resolve
from mmcalib.job import prove
from mmcalib.job.assemble import Findings, assemble, engine_config
from mmcalib.job.decide import Decider
from mmcalib.job.findings import findings
from mmcalib.job.read import Corpus, read
from mmcalib.progress import Progress, Silent
from mmcalib.report.calibration import Calibration
from mmcalib.report.engine_yaml import engine_yaml
from mmcalib.report.files import write_text

Validate = Literal["none", "budget", "startup", "replay"]
VALIDATIONS: tuple[Validate, ...] = ("none", "budget", "startup", "replay")

# Real items measured per modality: the extremes of each and a few more by chance.
SAMPLE_PER_MODALITY = 12
# Seconds that one profile and one replay may each take on this machine.
STARTUP_BUDGET_S = 60.0


@dataclass(frozen=True, slots=True)
class Job:
    """Everything that a calibration is asked to do."""

    model: str
    data: Sequence[Path]
    requests: Sequence[Path] = ()
    allowed_root: Path | None = None
    policy: Policy = field(default_factory=Policy)
    validate: Validate = "replay"
    startup_budget_s: float = STARTUP_BUDGET_S
    sample: int = SAMPLE_PER_MODALITY
    seed: int = 0
    cache_dir: Path | None = None


@dataclass(slots=True)
class Outcome:
    """What a run has so far: the calibration after each step, and everything skipped."""

    calibration: Calibration | None = None
    skipped: list[Skipped] = field(default_factory=list)
    on_change: Callable[[Outcome], None] = lambda outcome: None

    def now(self, calibration: Calibration | None) -> None:
        self.calibration = calibration
        self.on_change(self)


def calibrate(
    model: str,
    data: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    requests: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] = (),
    policy: Policy | None = None,
    validate: Validate = "replay",
    allowed_local_media_path: str | os.PathLike[str] | None = None,
    startup_budget_s: float = STARTUP_BUDGET_S,
    seed: int = 0,
    progress: Progress | None = None,
) -> Calibration:
    """Calibrate vLLM for the media in `data` and `requests` and return the result.

    `model` is a local checkpoint folder or a hub id. Whether the configuration may be used is
    `.verdict`. Raises `mmcalib.errors.MmcalibError` when there is nothing to calibrate.
    """
    job = Job(
        model=model,
        data=_paths(data),
        requests=_paths(requests),
        allowed_root=Path(allowed_local_media_path) if allowed_local_media_path else None,
        policy=policy or Policy(),
        validate=validate,
        startup_budget_s=startup_budget_s,
        seed=seed,
    )
    return run(job, Outcome(), progress or Silent())


def _paths(
    given: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
) -> tuple[Path, ...]:
    several = [given] if isinstance(given, str | os.PathLike) else given
    return tuple(Path(one) for one in several)


def cache_dir() -> Path:
    """Where materialised checkpoints are kept; `MMCALIB_CACHE_DIR` moves it."""
    named = os.environ.get("MMCALIB_CACHE_DIR")
    return Path(named) if named else platformdirs.user_cache_path("mmcalib")


def run(job: Job, outcome: Outcome, progress: Progress) -> Calibration:
    """Read, measure, decide, prove; `outcome` holds each step's result as soon as there is one."""
    if not job.data and not job.requests:
        raise UsageError("nothing to calibrate for", hint="--data DIR or --requests FILE.jsonl")
    if job.validate not in VALIDATIONS:
        raise UsageError(f"no such validation: {job.validate}", hint=f"one of {VALIDATIONS}")
    with tempfile.TemporaryDirectory(prefix="mmcalib-") as name:
        scratch = Path(name)
        corpus = read(
            job.data,
            job.requests,
            allowed_root=job.allowed_root,
            scratch=(job.cache_dir or cache_dir()) / "inline",
            progress=progress,
        )
        resolved = resolve(job.model, cache_dir=job.cache_dir or cache_dir())
        outcome.skipped.extend(corpus.skipped)
        outcome.now(None)
        for note in resolved.notes[:1]:
            progress.note(note)
        with EngineHost(on_said=progress.note) as host:
            return _calibrate(job, outcome, progress, scratch, corpus, resolved, host)


def _calibrate(
    job: Job,
    outcome: Outcome,
    progress: Progress,
    scratch: Path,
    corpus: Corpus,
    resolved: ResolvedModel,
    host: EngineHost,
) -> Calibration:
    opened = _open(host, resolved, job.policy, progress)
    corpus, left_out = _served(corpus, opened, job.policy)
    sample = choose(corpus.census, job.sample, job.seed)
    decider = Decider(host, opened, resolved.path, job.policy, progress)
    decision = decider.decide(corpus.census, corpus.prompts, sample)
    outcome.skipped.extend(decision.unreadable)
    known = Findings(resolved, opened, corpus, decision, job.policy, skipped=len(outcome.skipped))
    seen = replace(corpus, skipped=tuple(outcome.skipped))
    known.checks += findings(seen, left_out, decision, job.policy)
    outcome.now(assemble(known))
    path = scratch / "engine.yaml"
    write_text(path, engine_yaml(assemble(known), "vllm serve --config engine.yaml"))
    known.checks.append(prove.round_trip(host, path, engine_config(resolved, decision.engine_args)))
    outcome.now(assemble(known))
    if job.validate in ("startup", "replay"):
        _prove(job, known, scratch, host, progress)
        outcome.now(assemble(known))
        host.close()
        known.checks.append(_start_default(job, known, scratch, progress))
    else:
        detail = f"not asked for: --validate {job.validate}"
        known.checks.append(Check("engine start", "skip", detail, "--validate replay"))
    outcome.now(assemble(known))
    return assemble(known)


def _prove(job: Job, known: Findings, scratch: Path, host: EngineHost, progress: Progress) -> None:
    """Start and replay; a failure of the engine is a failed check, not an end of the job."""
    opened, decision = known.opened, known.decision
    model_path = Path(known.resolved.path)
    try:
        known.started = prove.start(
            host,
            model_path,
            decision.engine_args,
            scratch,
            job.startup_budget_s,
            opened.device,
            progress,
        )
        known.checks += prove.startup_checks(known.started, decision)
        if job.validate == "replay":
            known.burst = prove.choose_burst(
                known.corpus.prompts, decision, known.started, job.startup_budget_s
            )
            known.replayed = prove.replay(host, known.burst, progress)
            known.checks.append(prove.replay_check(known.burst, known.replayed))
    except EngineError as error:
        remedy = error.hint if isinstance(error, EngineDied) else "--validate budget starts nothing"
        name = "replay" if known.started else "engine start"
        known.checks.append(Check(name, "fail", error.message, remedy))


def _start_default(job: Job, known: Findings, scratch: Path, progress: Progress) -> Check:
    """Start the default configuration too, for comparison, where its profile is affordable here."""
    name, started, budget = "default config start", known.started, known.decision.default_budget
    if started is None:
        return Check(name, "skip", "the calibrated configuration did not start")
    tokens = min(budget.encoder_compute_budget, budget.encoder_cache_size)
    seconds = prove.default_seconds(started, known.decision)
    if seconds is None or seconds > job.startup_budget_s:
        about = f", at least {seconds:.0f} s at the cut depth here" if seconds else ""
        detail = f"not started: its profile would encode {tokens} tokens{about}"
        return Check(name, "skip", f"{detail}; its budget is computed")
    args = {"max_model_len": known.opened.max_model_len}
    path, device = Path(known.resolved.path), known.opened.device
    try:
        with EngineHost(on_said=progress.note) as host:
            known.default_started = prove.start(
                host, path, args, scratch / "default", job.startup_budget_s, device, progress
            )
    except EngineError as error:
        return Check(name, "warn", f"the default configuration does not start: {error.message}")
    peak = known.default_started.figures.activation_peak_bytes
    found = f", activation peak {peak / 2**30:.2f} GiB" if peak is not None else ""
    return Check(name, "pass", f"started too, for comparison{found}, measured")


def _open(
    host: EngineHost, resolved: ResolvedModel, policy: Policy, progress: Progress
) -> ModelOpened:
    """Open the model in the child; a text-only one ends here."""
    request = OpenModel(resolved.path, policy.max_model_len)
    with progress.step("opening the model in vLLM"):
        try:
            return host.ask(request, ModelOpened, "opening the model")
        except EngineDied:
            raise
        except EngineError as error:
            if "not a multimodal model" in error.message:
                raise ModelError(
                    f"{resolved.id} takes no images, video or audio: there is nothing to calibrate",
                    hint="mmcalib models (lists multimodal ones), or --model another",
                ) from None
            raise ModelError(f"vLLM cannot open {resolved.id}: {error.message}") from error


def _served(corpus: Corpus, opened: ModelOpened, policy: Policy) -> tuple[Corpus, dict[str, str]]:
    """The corpus without modalities that will not be served, and why each of those is left out."""
    left_out = {
        str(m): "the model does not take them" if m not in opened.modalities else "--count says 0"
        for m in corpus.census.modalities()
        if m not in opened.modalities or policy.count.get(m) == 0
    }
    if not left_out:
        return corpus, {}
    census = Census(e for e in corpus.census.shapes() if e.shape.modality not in left_out)
    if not census.items():
        takes = ", ".join(opened.modalities)
        raise CorpusError(
            f"nothing to measure: the corpus holds only {', '.join(left_out)} items; "
            f"the model takes {takes}",
            hint="--model one that takes them, or --data with other media",
        )
    prompts = PromptCensus(
        entry
        for entry in corpus.prompts.signatures()
        if all(shape.modality not in left_out for shape in entry.signature.shapes)
    )
    reasons = {m: f"{corpus.census.items(m)} {m} items: {why}" for m, why in left_out.items()}  # type: ignore[arg-type]
    return replace(corpus, census=census, prompts=prompts), reasons
