"""The stages of a calibration: prepare, derive, review, prove, predict memory."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from mmcalib.admission.rules import ProvenRule, prove_rules
from mmcalib.census.accesses import Accesses
from mmcalib.census.census import Census, choose_sample
from mmcalib.census.prompts import PromptCensus
from mmcalib.checks import corpus as data
from mmcalib.checks import engine, items, reserve
from mmcalib.checks.catalogue import MEMORY_RESERVE
from mmcalib.checks.check import Check, RemedyStyle
from mmcalib.checks.facts import Alternatives, CheckFacts, Decision
from mmcalib.checks.memory import comparison_check, memory_checks
from mmcalib.configs.opening import open_model, without_gpu_args
from mmcalib.decision.cache import with_cache
from mmcalib.decision.decide import MemoryJudge, decide
from mmcalib.decision.effects import drop_idle_settings
from mmcalib.decision.explore import BudgetSource, at_chosen_values
from mmcalib.decision.measure import Sample, find_same_cost
from mmcalib.decision.media_files import Files
from mmcalib.decision.texts import Texts
from mmcalib.domain.items import Skipped
from mmcalib.domain.memory import RehearsedMemory
from mmcalib.domain.model import ModelInfo, Server
from mmcalib.domain.shapes import Modality, Shape, weight
from mmcalib.errors import CorpusError, MmcalibError, ModelError, UsageError, VllmRefused
from mmcalib.files import write_text
from mmcalib.gate.admission import (
    DEFAULT_AUDIO_LIMITS,
    AudioLimits,
    ChatText,
    admitting_variables,
    count_packed_samples,
    find_request_refusal,
    find_server_refusal,
)
from mmcalib.limits.demand import FixedKvCache
from mmcalib.limits.policy import Policy
from mmcalib.limits.values import compute_reserve, count_limits
from mmcalib.models.catalogue import find_model
from mmcalib.models.cut import cut_checkpoint
from mmcalib.models.gpus import Gpu
from mmcalib.models.resolve import ResolvedModel
from mmcalib.prediction import predict, worst_steps
from mmcalib.prediction.rehearse import (
    EngineArgs,
    MemoryPrediction,
    Predicted,
    budget_figures,
    with_gpu_defaults,
)
from mmcalib.prediction.worst_steps import RehearseAll, find_shortfall
from mmcalib.progress import Silent
from mmcalib.proof.prove import (
    Launch,
    Proof,
    ReplaySource,
    check_config_parsing,
    compare_apart,
    prove,
)
from mmcalib.releases.constants import CONTEXT_TOO_LONG, CRASHING_AUDIO_SAMPLES
from mmcalib.remedies.memory import format_flags
from mmcalib.results.calibration import with_environment
from mmcalib.results.memory import EncoderBudget, ServedTraffic
from mmcalib.text import one_line
from mmcalib.workflows import judging
from mmcalib.workflows.corpus import LoadedCorpus, files_of, keep_requests
from mmcalib.workflows.run.session import GivenConfiguration, Session
from mmcalib.workflows.traffic.rehearse import MOST_IN_A_RUN, BackgroundTraffic, finish_serving
from mmcalib.workflows.traffic.requests import make_trace


def drop_refused(
    corpus: LoadedCorpus, server: Server, hearing: AudioLimits = DEFAULT_AUDIO_LIMITS
) -> tuple[LoadedCorpus, list[data.RefusedItems]]:
    """Return the rest and what the server rejects. Raises CorpusError if nothing is left."""
    left_out = [
        data.RefusedItems(file, refusal, entry.count, entry.exemplars[0])
        for file, entry in corpus.census.encoded_counts()
        if (refusal := find_server_refusal(file, server, hearing))
    ]
    if not left_out:
        return corpus, []
    census = corpus.census.exclude_files(lambda file: find_server_refusal(file, server, hearing))
    first = left_out[0]
    if not census.items():
        raise CorpusError(
            f"nothing to measure: the server rejects every item, such as "
            f"{one_line(first.exemplar)}: {first.refusal.reason}",
            hint=_include_command(required_environment(left_out, server)) or first.refusal.remedy,
        )
    shapes = {entry.shape for entry in census.shapes()}
    prompts = keep_requests(corpus.prompts, lambda shape: shape in shapes)
    return replace(corpus, census=census, prompts=prompts), left_out


def count_as_loaded(corpus: LoadedCorpus, server: Server) -> LoadedCorpus:
    """Count audio in samples as vLLM's loader does. Requests don't keep how a file is encoded, so
    theirs get the most samples of any file of that shape.
    """
    most: dict[Shape, Shape] = {}
    for file, _ in corpus.census.encoded_counts():
        if (shape := count_packed_samples(file, server).shape) != file.shape:
            most[file.shape] = max(shape, most.get(file.shape, shape), key=weight)
    if not most:
        return corpus
    census = Census.of_encoded(
        (count_packed_samples(file, server), entry)
        for file, entry in corpus.census.encoded_counts()
    )
    prompts = PromptCensus(
        replace(entry, signature=replace(one, shapes=tuple(most.get(s, s) for s in one.shapes)))
        for entry in corpus.prompts.signatures()
        for one in [entry.signature]
    )
    items = tuple((most.get(shape, shape), path) for shape, path in corpus.accesses.items)
    accesses = replace(corpus.accesses, items=items)
    return replace(corpus, census=census, prompts=prompts, accesses=accesses)


def required_environment(left_out: Sequence[data.RefusedItems], server: Server) -> dict[str, int]:
    """Return the lowest environment variables with which the server admits these items."""
    most: dict[str, int] = {}
    # What no variable admits, such as a sound at a rate that crashes the model, asks for none.
    for one in (one for one in left_out if one.refusal.variable):
        for variable, value in admitting_variables(one.file, server).items():
            most[variable] = max(value, most.get(variable, 0))
    return most


def check_sizes(prompts: PromptCensus, server: Server) -> Iterator[Check]:
    """Yield a check for each limit of the server that a request as a whole exceeds."""
    (_, fetching, files), (nbytes, sending) = prompts.downloads, prompts.largest_body
    fetched = find_request_refusal(files, (), server)
    sent = find_request_refusal((), (), server, nbytes)
    for origin, refusal in ((fetching, fetched), (sending, sent)):
        if refusal:
            yield data.rejected_request_check(origin, refusal)


def check_server(
    left_out: Sequence[data.RefusedItems], items: int, values: Mapping[str, int]
) -> Iterator[Check]:
    """Yield a check if the server rejects some of the `items`."""
    if left_out:
        yield data.rejected_items_check(left_out, items, _include_command(values))


def _include_command(values: Mapping[str, int]) -> str:
    """Return the command that calibrates for such items; empty if no value admits one."""
    if not values:
        return ""
    command = with_environment(values, "mmcalib run --emit env")
    return f"{command} includes them and writes these for the server (or --emit k8s)"


@dataclass(frozen=True, slots=True)
class Prepared:
    """An open model, the corpus as `read`, and what is served; `left_out` says why not the rest."""

    resolved: ResolvedModel
    opened: ModelInfo
    read: LoadedCorpus
    corpus: LoadedCorpus
    refused: tuple[data.RefusedItems, ...]
    left_out: Mapping[str, str]
    files: Files
    texts: Texts


def prepare(
    session: Session, resolved: ResolvedModel, read: LoadedCorpus, opened: ModelInfo
) -> Prepared:
    """Drop media that will not be served. Raises CorpusError if nothing is left to measure."""
    job = session.job
    crashing = CRASHING_AUDIO_SAMPLES.get(opened.architecture, range(0))
    hearing = AudioLimits(opened.audio_rate_hz, crashing)
    admitted, refused = drop_refused(read, opened.server, hearing)
    admitted = count_as_loaded(admitted, opened.server)
    corpus, left_out = drop_unserved(admitted, opened, job.policy)
    texts = Texts.of(session.host, opened.modalities, corpus.texts)
    texts.find_grammar(opened.modalities)
    if resolved.source == "bundled":
        texts.uncounted = "a bundled model has a placeholder tokenizer"
    else:
        texts.find_counting(opened.modalities)
    if session.prediction is not None:
        # Waits for the rehearsal of vLLM's defaults on that GPU.
        default, flags = session.default_args, job.config.flags
        refuse_unusable(session.prediction, default, session.given, flags, resolved)
        opened = with_gpu_defaults(opened, session.prediction.attempt(default))
    return Prepared(
        resolved=resolved,
        opened=opened,
        read=read,
        corpus=corpus,
        refused=tuple(refused),
        left_out=left_out,
        files=files_of(corpus, job.probe.item_timeout_s),
        texts=texts,
    )


def refuse_unusable(
    prediction: MemoryPrediction,
    default: EngineArgs,
    given: Mapping[str, Any],
    flags: Sequence[str],
    resolved: ResolvedModel,
) -> None:
    """Raise UsageError if vLLM rejects the model with these arguments but not without them."""
    prediction.attempt(default)
    refused = prediction.find_result(default)
    rest = {k: v for k, v in default.items() if k not in given}
    if not given or not isinstance(refused, VllmRefused) or prediction.attempt(rest) is None:
        return
    arguments = shlex.join(flags) or ", ".join(given)
    hint = refused.hint or "change the flag that vLLM names, or leave it out"
    if not_quantized := re.search(r"(?:config file for|config, and) (\w+)", refused.reason):
        sibling = f"{resolved.id}-{not_quantized[1].upper()}"
        other = f"--model {sibling}" if find_model(sibling) else "--model with a checkpoint that is"
        hint = f"this checkpoint is not quantized: {other}, or -- --quantization fp8"
    words = f"vLLM rejects {resolved.id} with {arguments}: {one_line(refused.reason)}"
    raise UsageError(words, hint=hint) from refused


def open_to_calibrate(session: Session, resolved: ResolvedModel) -> ModelInfo:
    """Open the model without progress. Raises ModelError if it is text-only or vLLM rejects it."""
    try:
        return open_model(
            session.host,
            resolved,
            Silent(),
            # The device is unknown until vLLM answers, and no processor depends on GPU arguments.
            without_gpu_args(session.given, "cpu"),
            context_tokens=session.job.policy.context_tokens,
            so=": there is nothing to calibrate",
        )
    except VllmRefused as error:
        if too_long := CONTEXT_TOO_LONG.search(error.reason):
            own, context = int(too_long["own"]), session.job.policy.context_tokens
            raise UsageError(
                f"--max-model-len {context}: {resolved.id} has a context of {own:,} tokens",
                hint=f"--max-model-len {own}, or leave it out",
            ) from error
        words = f"vLLM cannot open {resolved.id}: {error.message}"
        raise ModelError(words, hint=error.hint) from error


def drop_unserved(
    corpus: LoadedCorpus, opened: ModelInfo, policy: Policy
) -> tuple[LoadedCorpus, dict[str, str]]:
    """Drop modalities that will not be served; return the rest and each reason."""
    left_out = {
        m: "the model does not take them" if m not in opened.modalities else "--count is 0"
        for m in corpus.census.modalities()
        if m not in opened.modalities or policy.count.get(m) == 0
    }
    if not left_out:
        return corpus, {}
    rest = corpus.only([m for m in corpus.census.modalities() if m not in left_out])
    if not rest.census.items():
        takes = ", ".join(opened.modalities)
        only = ", ".join(f"{m} items ({why})" for m, why in left_out.items())
        raise CorpusError(
            f"nothing to measure: the corpus holds only {only}; the model takes {takes}",
            hint="a --model that takes them, or --data with other media",
        )
    reasons = {str(m): f"{corpus.census.items(m)} {m} items: {why}" for m, why in left_out.items()}
    return rest, reasons


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


def budget_your_config(
    yours: GivenConfiguration | None, budgets: BudgetSource
) -> tuple[EncoderBudget | None, str]:
    """Return vLLM's budget under the user's configuration, and vLLM's words if it rejects it."""
    if yours is None:
        return None, ""
    try:
        budget = budgets.budget_of(yours.engine_args, build_dummy=True)
    except VllmRefused as error:
        return None, error.reason
    counts = {m: c.value for m, c in count_limits(yours.engine_args, budgets.opened).items()}
    return budget_figures(budget, compute_reserve(budget, counts)), ""


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


def check_unstarted_flags(
    given: Mapping[str, Any], device: str, gpu: Gpu | None
) -> Iterator[Check]:
    """Yield a check of the arguments with which no engine can start on this machine."""
    usable = without_gpu_args(given, device)
    if unusable := [name for name in given if name not in usable]:
        yield engine.unstarted_flags_check(unusable, gpu.name if gpu else None)


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
