"""The stages of a calibration: derive, review, prove, predict memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from mmcalib.admission.rules import ProvenRule, prove_rules
from mmcalib.census.accesses import Accesses
from mmcalib.census.census import choose_sample
from mmcalib.checks import corpus as data
from mmcalib.checks import engine, items, reserve
from mmcalib.checks.catalogue import MEMORY_RESERVE
from mmcalib.checks.check import Check, RemedyStyle
from mmcalib.checks.facts import Alternatives, CheckFacts, Decision
from mmcalib.checks.memory import comparison_check, memory_checks
from mmcalib.decision.cache import with_cache
from mmcalib.decision.decide import MemoryJudge, decide
from mmcalib.decision.effects import drop_idle_settings
from mmcalib.decision.explore import BudgetSource, at_chosen_values
from mmcalib.decision.measure import Sample, find_same_cost
from mmcalib.domain.items import Skipped
from mmcalib.domain.memory import RehearsedMemory
from mmcalib.domain.shapes import Modality, Shape, weight
from mmcalib.errors import MmcalibError
from mmcalib.files import write_text
from mmcalib.gate.admission import ChatText
from mmcalib.limits.demand import FixedKvCache
from mmcalib.limits.policy import Policy
from mmcalib.models.cut import cut_checkpoint
from mmcalib.prediction import predict, worst_steps
from mmcalib.prediction.rehearse import Predicted
from mmcalib.prediction.worst_steps import RehearseAll, find_shortfall
from mmcalib.proof.prove import (
    Launch,
    Proof,
    ReplaySource,
    check_config_parsing,
    compare_apart,
    prove,
)
from mmcalib.remedies.memory import format_flags
from mmcalib.results.memory import EncoderBudget, ServedTraffic
from mmcalib.workflows import judging
from mmcalib.workflows.corpus import LoadedCorpus
from mmcalib.workflows.run.prepare import Prepared, check_server, check_sizes, required_environment
from mmcalib.workflows.run.session import Session, budget_your_config, check_unstarted_flags
from mmcalib.workflows.traffic.rehearse import MOST_IN_A_RUN, BackgroundTraffic, finish_serving
from mmcalib.workflows.traffic.requests import make_trace


@dataclass(frozen=True, slots=True)
class Derived:
    """A decision, its `sample`, and vLLM's budget or error under the user's configuration."""

    prepared: Prepared
    sample: Sample
    decision: Decision
    serving: BackgroundTraffic | None
    budget_yours: EncoderBudget | None
    refused_yours: str
    chats: Mapping[Modality, ChatText]

    @property
    def skipped(self) -> tuple[Skipped, ...]:
        """Items that could not be read, and those that failed when they were measured."""
        return (*self.prepared.corpus.skipped, *self.decision.unreadable)

    @property
    def engine_config(self) -> dict[str, Any]:
        """The contents of engine.yaml, by vLLM's argument names."""
        resolved = self.prepared.resolved
        model = resolved.path if resolved.source == "local" else resolved.id
        return {"model": model, **self.decision.engine_args}


def derive(session: Session, served: Prepared) -> Derived:
    job, host, progress = session.job, session.host, session.progress
    opened, corpus = served.opened, served.corpus
    sample = choose_sample(corpus.census, job.options.sample)
    path, files = served.resolved.path, served.files
    budgets = BudgetSource(host, opened, path, job.policy, files=files, given=session.given)
    reserve, texts = job.policy.text_reserve_tokens, served.texts
    serving, judge = None, MemoryJudge()
    if session.prediction is not None and session.server is not None:
        prediction, server, default = session.prediction, session.server, session.default_args
        # The process starts up while text is counted.
        server.run_after(server.rehearsals.start_simulated_gpu)
        answers = min(reserve, opened.max_model_len)
        requests = make_trace(corpus, texts.split, answer_tokens=answers, most=MOST_IN_A_RUN)
        cut = cut_checkpoint(Path(served.resolved.path), session.scratch / "served")
        serving = BackgroundTraffic(prediction, server, requests, cut)
        judge = predict.RehearsalJudge(
            prediction,
            default,
            job.policy.concurrency,
            serving.wait_for_figures,
            given={*session.given, *job.policy.given_values},
            reserves=not (job.policy.allow_under_reserve or job.options.pin_kv_cache),
        )
        if server is not prediction:
            serving.start(default)
    decision = decide(corpus.census, corpus.prompts, sample, budgets, progress, judge, texts)
    for remedy in decision.remedies:
        budgets = budgets.with_values(remedy.changes)
    decision = with_cache(decision, corpus.accesses, opened, job.policy)
    decision = at_chosen_values(drop_idle_settings(decision, budgets, progress), budgets, progress)
    budget, refused = budget_your_config(session.yours, budgets)
    # The context of an encoder-decoder model holds no items.
    chatted = () if opened.encoder_decoder else decision.table.modalities()
    chats = {m: texts.chat(corpus.prompts, m, reserve) for m in chatted}
    return Derived(served, sample, decision, serving, budget, refused, chats)


@dataclass(frozen=True, slots=True)
class Review:
    """Checks, `rules` for unmeasured shapes, the `environment` that admits dropped items, and the
    least share of an original that the model's own limits keep.
    """

    derived: Derived
    rules: Mapping[Modality, ProvenRule]
    environment: Mapping[str, int]
    checks: tuple[Check, ...]
    least_kept: Mapping[Modality, float] = field(default_factory=dict)


def review(session: Session, decided: Derived) -> Review:
    served, decision = decided.prepared, decided.decision
    rules = prove_rules(session.host, served.opened, decision, session.progress)
    kept = items.least_kept(decision)
    same, table = dict[Modality, Shape](), decision.most_detailed_table
    for modality in (m for m in table.modalities() if m not in kept):
        largest = items.largest_item(table.columns_of(modality)).shape
        dummy = decision.plain.dummies.get(modality)
        profiled = dummy.shape(modality, served.opened.audio_rate_hz) if dummy else None
        # A smaller copy of the largest item that takes as many tokens.
        if copy := find_same_cost(session.host, table.setting, largest, profiled):
            same[modality], kept[modality] = copy, weight(copy) / weight(largest)
    needed = required_environment(served.refused, served.opened.server)
    corpus, gpu = replace(served.corpus, skipped=decided.skipped), session.job.gpu
    checks = [
        *check_server(served.refused, served.read.census.items(), needed),
        *check_sizes(served.read.prompts, served.opened.server),
        *engine.missing_parts(served.opened),
        *check_decision(corpus, served.left_out, decision, session.job.policy, same),
    ]
    if gpu is None and session.job.policy.max_num_batched_tokens is None:
        batch = decision.engine_args["max_num_batched_tokens"]
        checks.append(data.assumed_batch_check(batch, served.opened.device))
    checks += check_unstarted_flags(session.given, served.opened.device, gpu)
    if session.prediction is None:
        no_gpu = reserve.no_gpu("mmcalib run --gpu NAME --force")
        checks = reserve.qualify_tokens_only(checks, decision, no_gpu)
    if session.job.options.device == "cuda":
        path, tokens = served.resolved.path, session.job.policy.context_tokens
        setting, sample, files = decision.setting, decided.sample, served.files
        compared = compare_apart(path, tokens, "cuda", setting, sample, session.progress, files)
        checks.append(engine.processor_check(compared))
    return Review(decided, rules, needed, tuple(checks), kept)


def check_decision(
    corpus: LoadedCorpus,
    left_out: Mapping[str, str],
    decision: Decision,
    policy: Policy,
    same_cost: Mapping[Modality, Shape] = MappingProxyType({}),
) -> list[Check]:
    """Return the checks, most severe first; `left_out` has a reason per dropped modality."""
    facts = CheckFacts(
        dialect=RemedyStyle.FLAGS,
        configuration=decision,
        policy=policy,
        prompt=decision.longest,
        corpus=judging.corpus_facts(corpus, decision, decision.default_table, left_out),
        tries=Alternatives(same_cost=same_cost),
    )
    return list(judging.judge(judging.DECIDED_RULES, facts))


def prove_decision(session: Session, decided: Derived, engine_yaml: str) -> Proof:
    """Read `engine_yaml` back, start the engine and replay, up to the job's depth."""
    job, served, depth = session.job, decided.prepared, session.job.options.validate
    checks = []
    if depth != "none":
        path = session.scratch / "engine.yaml"
        write_text(path, engine_yaml)
        checks.append(check_config_parsing(session.host, path, decided.engine_config))
    if depth not in ("startup", "replay"):
        checks.append(engine.skipped_start_check(depth, RemedyStyle.FLAGS))
        return Proof(checks=tuple(checks))
    path, budget_s = Path(served.resolved.path), job.options.startup_budget_s
    launch = Launch(decided.decision, served.opened, path, session.scratch, budget_s, job.gpu)
    source = ReplaySource(served.corpus.prompts, served.files) if depth == "replay" else None
    remedy = "--validate budget starts no engine"
    proof = prove(session.host, launch, source, session.progress, remedy=remedy)
    return replace(proof, checks=(*checks, *proof.checks))


@dataclass(frozen=True, slots=True)
class PredictedMemory:
    """All `checks` with memory; `yours` is the user's configuration rehearsed, or its error."""

    predicted: Predicted | None
    checks: tuple[Check, ...]
    traffic: ServedTraffic | None = None
    pool: FixedKvCache | None = None
    yours: RehearsedMemory | MmcalibError | None = None


def start_memory(session: Session, decided: Derived) -> None:
    """Start rehearsing the decision and serving the corpus, while an engine proves it."""
    if session.prediction is None or decided.serving is None:
        return
    predict.start_rehearsals(session.prediction, session.default_args, decided.decision)
    decided.serving.start(decided.decision.engine_args)
    decided.serving.start(session.default_args)


def predict_memory(session: Session, reviewed: Review, proof: Proof) -> PredictedMemory:
    """Wait for the rehearsals and the traffic, and add their checks."""
    checks = [*reviewed.checks, *proof.checks]
    job, decided, progress = session.job, reviewed.derived, session.progress
    prediction, serving = session.prediction, decided.serving
    if prediction is None or serving is None:
        return PredictedMemory(None, tuple(checks))
    decision, default = decided.decision, session.default_args
    predicted = predict.rehearse_decision(prediction, default, decision)
    ask = prediction.rehearse_all
    pinned = predict.fix_kv_cache(predicted, decision, ask) if job.options.pin_kv_cache else None
    served = predicted
    if pinned is not None and pinned.rehearsed is not None:
        served = replace(predicted, calibrated=pinned.rehearsed)
    memory = _reserve_checks(served, decision, job.policy, ask, decided.prepared.corpus.accesses)
    if memory:
        replaced = {MEMORY_RESERVE, *items.rehearsed_inputs(served.calibrated)}
        checks = [check for check in checks if check.id not in replaced]
    gpu, before, after = predicted.gpu.name, predicted.default, predicted.calibrated
    figures = proof.started.figures if proof.started else None
    memory += memory_checks(gpu, before, after, predicted.failure, figures, job.policy.concurrency)
    unrehearsed = judging.explain_unrehearsed(served, replace(job.config, model=job.model))
    checks = judging.judge_memory(checks, memory, decision, unrehearsed)
    if pinned is not None:
        checks.append(pinned.check)

    def starts_with(share: float) -> bool:
        (one,) = ask([{**decision.engine_args, "gpu_memory_utilization": share}], ())
        return one is not None and one.starts

    own = decision.engine_args
    with progress.step(f"simulating requests on {gpu}"):
        traffic, more = finish_serving(serving, predicted, default, own, starts_with)
    checks += more
    problem = predict.find_default_problem(predicted, default, decision, ask)
    loads = (traffic.default, traffic.calibrated) if traffic and traffic.default else None
    comparison = comparison_check(before, after, loads, decision, job.policy, problem)
    checks += [comparison] if comparison is not None else []
    pool = pinned.pool if pinned else None
    yours = prediction.find_result(session.yours.engine_args) if session.yours else None
    return PredictedMemory(predicted, tuple(checks), traffic, pool, yours)


def _reserve_checks(
    predicted: Predicted, decision: Decision, policy: Policy, ask: RehearseAll, accesses: Accesses
) -> list[Check]:
    """Check the reserve in bytes, with options that pass, and retention; needs a rehearsal."""
    after, allowed = predicted.calibrated, policy.allow_under_reserve
    short, remedies = find_shortfall(decision, after, predicted.steps), []
    if short is None:
        return []
    # Only what the user has set stands against these: `decide` applies all others.
    for remedy, _ in worst_steps.find_remedies(short, decision, ask) if not short.holds else ():
        # `run` has these options, but for others vLLM's flags follow `--`.
        values = dict(remedy.changes)
        batch = values.pop("max_num_batched_tokens", None)
        own = f"--max-num-batched-tokens {batch} " if batch else ""
        remedies.append(f"{own}{'-- ' if values else ''}{format_flags(values)}".strip())
    reserved = reserve.reserved_bytes_check(short, after, decision, remedies, allowed=allowed)
    retention = worst_steps.check_retention(predicted, decision, accesses)
    return [check for check in (reserved, retention) if check is not None]
