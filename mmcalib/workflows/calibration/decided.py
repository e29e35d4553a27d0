"""Third stage: what is served, measured, and the configuration that follows from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mmcalib.census.sample import choose
from mmcalib.domain.items import Skipped
from mmcalib.results.memory import EncoderBudget
from mmcalib.workflows.calibration.given import YourConfiguration, budget_yours
from mmcalib.workflows.calibration.served import Served
from mmcalib.workflows.calibration.session import Session
from mmcalib.workflows.decision.budgets import BudgetSource
from mmcalib.workflows.decision.cache import size_cache
from mmcalib.workflows.decision.decide import decide
from mmcalib.workflows.decision.decision import Decision
from mmcalib.workflows.decision.effects import effective
from mmcalib.workflows.decision.held import held
from mmcalib.workflows.decision.measure import Sample
from mmcalib.workflows.memory.explored import RehearsalJudge
from mmcalib.workflows.traffic.beside import Serving


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
            margin_bytes=serving.margin_bytes if serving else lambda args: None,
        )
    if serving is not None and serving.process.apart:
        serving.begin(session.default_args)
    decision = decide(corpus.census, corpus.prompts, sample, budgets, progress, judge, texts)
    floor = decision.cache_floor()
    decision = decision.with_cache(
        size_cache(corpus.accesses, decision.table, decision.counts, floor, opened, job.policy)
    )
    decision = held(effective(decision, budgets, progress), budgets, progress)
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
