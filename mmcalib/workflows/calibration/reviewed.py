"""Fourth stage: what is wrong with a decision, as far as no engine need start to tell."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from mmcalib.checks.check import Check
from mmcalib.checks.corpus import step
from mmcalib.checks.dialect import Dialect
from mmcalib.checks.facts import CheckFacts, CheckStage, CorpusFacts
from mmcalib.checks.judge import judge
from mmcalib.checks.reserve import moved_parts
from mmcalib.derive.policy import Policy
from mmcalib.domain.shapes import Modality
from mmcalib.workflows.calibration.cache import cache_checks
from mmcalib.workflows.calibration.decided import Decided
from mmcalib.workflows.calibration.given import given_check
from mmcalib.workflows.calibration.session import Session
from mmcalib.workflows.calibration.taken_in import environment, server_checks
from mmcalib.workflows.corpus_facts import requests_over
from mmcalib.workflows.decision.decision import Decision
from mmcalib.workflows.gate.rules import ProvenRule, prove_rules
from mmcalib.workflows.memory.tokens_alone import in_tokens, no_gpu
from mmcalib.workflows.proof.processor_device import compare_apart, compared_check
from mmcalib.workflows.read import ReadCorpus


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
