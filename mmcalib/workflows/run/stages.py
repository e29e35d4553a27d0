"""Decide, review, prove, predict."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mmcalib.admission.rules import ProvenRule, prove_rules
from mmcalib.census.accesses import Accesses
from mmcalib.census.sample import choose
from mmcalib.checks.check import Check, Dialect
from mmcalib.checks.corpus import step
from mmcalib.checks.facts import CheckFacts, CheckStage, CorpusFacts
from mmcalib.checks.judge import judge
from mmcalib.checks.reserve import ENGINE_START, RESERVED, moved_parts
from mmcalib.decision.decide import decide
from mmcalib.decision.decision import Decision, size_cache
from mmcalib.decision.effects import effective
from mmcalib.decision.explore import BudgetSource
from mmcalib.decision.grid import at_chosen_values
from mmcalib.decision.measure import Sample
from mmcalib.derive.demand import FixedPool
from mmcalib.derive.policy import Policy
from mmcalib.domain.items import Skipped
from mmcalib.domain.memory import Rehearsed
from mmcalib.domain.shapes import Modality
from mmcalib.engine.vllm_config import here, serves
from mmcalib.errors import MmcalibError
from mmcalib.files import write_text
from mmcalib.memory.checks import (
    comparison_check,
    in_tokens,
    known_in_bytes,
    memory_checks,
    no_gpu,
    not_rehearsed,
    predicted_shortfall,
    reserved_check,
)
from mmcalib.memory.predict import RehearsalJudge, begin, pinned, predicted, rehearsing
from mmcalib.memory.rehearse import Predicted
from mmcalib.memory.worst_steps import Ask, cured, views_check, with_less_kv_cache
from mmcalib.proof.devices import compare_apart, compared_check
from mmcalib.proof.prove import Proof, ReplaySource, prove, round_trip
from mmcalib.proof.start import Launch, not_started
from mmcalib.results.memory import EncoderBudget, ServedTraffic
from mmcalib.text import flag, gib
from mmcalib.workflows.corpus import ReadCorpus, requests_over
from mmcalib.workflows.run.evidence import cache_checks
from mmcalib.workflows.run.prepare import Served, environment, server_checks
from mmcalib.workflows.run.session import Session, YourConfiguration, budget_yours, given_check
from mmcalib.workflows.traffic.background import (
    ServedBeside,
    Serving,
    StartsWith,
    begin_serving,
    finish_serving,
)


@dataclass(frozen=True, slots=True)
class Decided:
    """`sample` are the real files that were measured, `given` the engine arguments that the user
    said besides; `serving` serves all requests on the job's GPU. `yours` is the user's
    configuration, with vLLM's budget under it or why it has none.
    """

    served: Served
    sample: Sample
    decision: Decision
    given: Mapping[str, Any] = field(default_factory=dict)
    serving: Serving | None = None
    yours: YourConfiguration | None = None
    budget_yours: EncoderBudget | None = None
    refused_yours: str = ""

    @property
    def skipped(self) -> tuple[Skipped, ...]:
        """All that was not read, and all that turned out unreadable when it was measured."""
        return (*self.served.corpus.skipped, *self.decision.unreadable)

    @property
    def engine_config(self) -> dict[str, Any]:
        """What engine.yaml says, under vLLM's argument names."""
        resolved = self.served.resolved
        model = resolved.path if resolved.source == "local" else resolved.id
        return {"model": model, **self.decision.engine_args}


def derive(session: Session, served: Served) -> Decided:
    job, host, progress = session.job, session.host, session.progress
    opened, corpus = served.opened, served.corpus
    sample = choose(corpus.census, job.sample)
    budgets = BudgetSource(
        host,
        opened,
        served.resolved.path,
        job.policy,
        files=served.files,
        given=session.given,
    )
    texts = served.texts
    serving = _serving(session, served)
    judge = None
    if session.prediction is not None:
        judge = RehearsalJudge(
            session.prediction,
            session.default_args,
            job.policy.concurrency,
            progress,
            traffic=serving.figures if serving else lambda args: None,
        )
    if serving is not None and serving.process.apart:
        serving.begin(session.default_args)
    decision = decide(corpus.census, corpus.prompts, sample, budgets, progress, judge, texts)
    floor = decision.cache_floor()
    decision = decision.with_cache(
        size_cache(corpus.accesses, decision.table, decision.counts, floor, opened, job.policy)
    )
    decision = at_chosen_values(effective(decision, budgets, progress), budgets, progress)
    budget, refused = budget_yours(session.yours, budgets)
    return Decided(served, sample, decision, session.given, serving, session.yours, budget, refused)


def _serving(session: Session, served: Served) -> Serving | None:
    if session.prediction is None or session.serving is None:
        return None
    return Serving.of(
        session.prediction,
        session.serving,
        served.texts,
        served.corpus,
        Path(served.resolved.path),
        session.scratch,
    )


@dataclass(frozen=True, slots=True)
class Reviewed:
    """`rules` bound shapes that were not measured, `needed` is what the server's environment must
    say for the items that it refuses now.
    """

    decided: Decided
    rules: Mapping[Modality, ProvenRule]
    needed: Mapping[str, int]
    checks: tuple[Check, ...]


def review(session: Session, decided: Decided) -> Reviewed:
    served, decision = decided.served, decided.decision
    rules = prove_rules(session.host, served.opened, decision, session.progress)
    needed = environment(served.refused, served.opened.server)
    seen = replace(served.corpus, skipped=decided.skipped)
    checks = [
        *server_checks(served.refused, served.items, needed),
        *moved_parts(served.opened),
        *findings(seen, dict(served.left_out), decision, session.job.policy),
    ]
    if session.job.gpu is None and session.job.policy.max_num_batched_tokens is None:
        checks.append(step(decision.engine_args["max_num_batched_tokens"], served.opened.device))
    left = given_check(session.given, served.opened.device, session.job.gpu)
    if left is not None:
        checks.append(left)
    if session.prediction is None:
        checks = in_tokens(checks, decision, no_gpu("mmcalib run --gpu NAME --force"))
    if session.job.device == "cuda":
        compared = compare_apart(
            served.resolved.path,
            session.job.policy.context_tokens,
            session.job.device,
            decision.setting,
            decided.sample,
            session.progress,
            served.files,
        )
        checks.append(compared_check(compared))
    return Reviewed(decided, rules, needed, tuple(checks))


def findings(
    corpus: ReadCorpus, left_out: dict[str, str], decision: Decision, policy: Policy
) -> list[Check]:
    """In the order in which they would hurt; `left_out` says why a modality is not served."""
    facts = CheckFacts(
        dialect=Dialect.FLAGS,
        configuration=decision,
        policy=policy,
        prompt=decision.longest,
        given_corpus=CorpusFacts(
            files=corpus.files,
            skipped=corpus.skipped,
            table=decision.default_table,
            left_out=left_out,
            over=requests_over(corpus.prompts, decision.counts),
            requests=corpus.prompts.prompts(),
        ),
        given_decision=decision,
    )
    return [*judge(CheckStage.DECIDED, facts), *cache_checks(decision, policy)]


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
