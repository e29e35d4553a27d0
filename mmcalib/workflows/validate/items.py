"""The items that a configuration is tried with: the user's corpus, or made-up ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from mmcalib.census.sample import choose
from mmcalib.checks import items as traps
from mmcalib.checks.check import Check
from mmcalib.checks.dialect import Dialect
from mmcalib.checks.facts import CheckFacts, CheckStage, CorpusFacts, Fullest
from mmcalib.checks.judge import judge
from mmcalib.derive.fit import Fit
from mmcalib.derive.policy import TEXT_RESERVE_TOKENS
from mmcalib.engine.host import EngineHost
from mmcalib.options.run import SAMPLE_PER_MODALITY
from mmcalib.progress import Progress
from mmcalib.workflows.corpus_facts import requests_over
from mmcalib.workflows.decision.budgets import BudgetSource
from mmcalib.workflows.decision.fits import longest_prompt
from mmcalib.workflows.decision.measure import measure
from mmcalib.workflows.decision.texts import Texts
from mmcalib.workflows.read import ReadCorpus, files_of, read
from mmcalib.workflows.spec import cache_dir
from mmcalib.workflows.validate.findings import fullest, takes_fullest
from mmcalib.workflows.validate.made_up import minute_of_video, write_requests
from mmcalib.workflows.validate.spec import Media
from mmcalib.workflows.validate.subject import Subject, takes_context


def read_media(media: Media, progress: Progress) -> ReadCorpus:
    """The user's corpus. Raises CorpusError and UsageError as `mmcalib run` does."""
    return read(
        media.data,
        media.requests,
        allowed_root=media.allowed_root,
        cache=cache_dir(),
        progress=progress,
    )


def measured(
    corpus: ReadCorpus, subject: Subject, asks: BudgetSource, progress: Progress
) -> tuple[Subject, list[Check]]:
    """The subject with the costs of the corpus, and what of the corpus will be rejected."""
    served, left_out = _served(corpus, subject)
    sample = choose(served.census, SAMPLE_PER_MODALITY)
    table, unreadable = measure(
        asks.host, served.census, subject.setting, sample, progress, files_of(served)
    )
    subject = replace(subject, table=table)
    prompt, longer = _longest(served, subject, asks)
    checks = judge(
        CheckStage.MEASURED,
        CheckFacts(
            dialect=Dialect.LINES,
            configuration=subject,
            prompt=prompt,
            longer=longer,
            given_corpus=CorpusFacts(
                files=corpus.files,
                skipped=corpus.skipped,
                table=subject.table,
                left_out=left_out,
                over=requests_over(served.prompts, subject.counts),
                unreadable=unreadable,
            ),
            given_model=subject.opened,
        ),
    )
    return subject, list(checks)


def _longest(
    corpus: ReadCorpus, subject: Subject, asks: BudgetSource
) -> tuple[Fit | Fullest | None, bool]:
    """R5 on the corpus' own prompts, and whether the model takes a context that holds them; without
    requests on its largest items, as many as the limits name.
    """
    table, budget, prompts = subject.table, subject.budget, corpus.prompts
    if not prompts.prompts():
        if subject.opened.encoder_decoder:
            return None, False
        heaviest = {m: table.heaviest(m) for m in table.modalities()}
        largest = {m: cost.tokens for m, cost in heaviest.items() if cost is not None}
        most = fullest(subject, largest, own=True)
        return most, takes_fullest(subject, asks, most)
    fit = longest_prompt(
        prompts,
        table,
        subject.counts,
        budget,
        TEXT_RESERVE_TOKENS,
        budget.max_model_len,
        Texts.of(asks.host, subject.opened.modalities, corpus.texts),
        encoder_decoder=subject.opened.encoder_decoder,
    )
    longer = (
        fit is not None
        and not fit.whole
        and takes_context(asks, subject.engine_args, fit.needed_tokens)
    )
    return fit, longer


def _served(corpus: ReadCorpus, subject: Subject) -> tuple[ReadCorpus, dict[str, str]]:
    """The corpus without what the configuration rejects as a whole, and the words for that."""
    served = {m for m, count in subject.counts.items() if count.value}
    gone = [m for m in corpus.census.modalities() if m not in served]
    if not gone:
        return corpus, {}
    words = {str(m): f"{corpus.census.items(m):,} {m} items" for m in gone}
    return corpus.only(served), words


def probed(subject: Subject, host: EngineHost, progress: Progress) -> Iterator[Check]:
    """Without a corpus: a video that people do send against the encoder cache."""
    budget, setting = subject.budget, subject.setting
    served = subject.counts.get("video")
    cost = None
    if served is not None and served.value:
        with progress.step("measuring a minute of video"):
            cost = minute_of_video(setting, host)
    if cost is None:
        check = traps.budgeted(budget)
        if check is not None:
            yield check
        return
    share = traps.room(budget) / cost.embeds
    slower = traps.slower(subject.opened.knobs, setting.media_io_kwargs, share)
    if share < 1 and slower is not None:
        less = minute_of_video(replace(setting, media_io_kwargs=slower), host)
        if less is None or less.embeds > traps.room(budget):
            slower = None
    yield traps.probed("a minute of 720p video", cost.embeds, budget, slower)


def made_up(
    subject: Subject, host: EngineHost, folder: Path, progress: Progress
) -> tuple[Subject, ReadCorpus] | None:
    """A corpus of the largest items that the configuration admits, and the subject with its costs;
    None where it admits none.
    """
    with progress.step("making up the largest items"):
        requests = write_requests(subject, host, folder)
    if requests is None:
        return None
    corpus = read((), [requests], allowed_root=folder, cache=folder, progress=progress)
    sample = choose(corpus.census, SAMPLE_PER_MODALITY)
    files = files_of(corpus)
    table, _ = measure(host, corpus.census, subject.setting, sample, progress, files)
    return replace(subject, table=table), corpus
