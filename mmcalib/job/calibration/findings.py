"""Checks that follow from what was read, measured and decided, before any engine starts."""

from __future__ import annotations

from mmcalib.checks.check import Check
from mmcalib.checks.dialect import Dialect
from mmcalib.checks.facts import CheckFacts, CorpusFacts
from mmcalib.checks.judge import judge
from mmcalib.checks.rule import CheckStage
from mmcalib.derive.policy import Policy
from mmcalib.job.calibration.cache import cache_checks
from mmcalib.job.corpus_facts import requests_over
from mmcalib.job.decision.decision import Decision
from mmcalib.job.read import ReadCorpus


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
        ),
        given_decision=decision,
    )
    return [*judge(CheckStage.DECIDED, facts), *cache_checks(decision, policy)]
