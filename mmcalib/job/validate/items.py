"""The items that a configuration is tried with: the user's corpus, or made-up ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from mmcalib.census.prompts import PromptCensus
from mmcalib.census.sample import choose
from mmcalib.checks.catalogue import items as traps
from mmcalib.checks.catalogue import prompts as prompt_traps
from mmcalib.checks.catalogue.corpus import ITEMS_LOAD, MODALITIES_SERVED
from mmcalib.checks.catalogue.encoder_input import excess_check
from mmcalib.checks.catalogue.prompts import REQUESTS_ADMITTED
from mmcalib.checks.check import Check
from mmcalib.checks.dialect import line
from mmcalib.derive.encoder_input import excesses
from mmcalib.derive.policy import TEXT_RESERVE_TOKENS
from mmcalib.engine.host import EngineHost
from mmcalib.job.calibration.corpus_checks import readable
from mmcalib.job.decision.budgets import Budgets
from mmcalib.job.decision.fits import longest_prompt
from mmcalib.job.decision.measure import measure
from mmcalib.job.decision.texts import Texts
from mmcalib.job.read import Corpus, files_of, read
from mmcalib.job.spec import cache_dir
from mmcalib.job.validate.findings import fullest_fits
from mmcalib.job.validate.made_up import minute_of_video, write_requests
from mmcalib.job.validate.subject import Subject, takes_context
from mmcalib.options.run import SAMPLE_PER_MODALITY
from mmcalib.progress import Progress


@dataclass(frozen=True, slots=True)
class Media:
    """What the user gave to be served; nothing of it is needed."""

    data: Sequence[Path] = ()
    requests: Sequence[Path] = ()
    allowed_root: Path | None = None

    @property
    def given(self) -> bool:
        return bool(self.data or self.requests)


def read_media(media: Media, progress: Progress) -> Corpus:
    """The user's corpus. Raises CorpusError and UsageError as `mmcalib run` does."""
    return read(
        media.data,
        media.requests,
        allowed_root=media.allowed_root,
        cache=cache_dir(),
        progress=progress,
    )


def measured(
    corpus: Corpus, subject: Subject, asks: Budgets, progress: Progress
) -> Iterator[Check]:
    """Measure the corpus under the configuration, and say what of it will be rejected."""
    yield readable(corpus)
    served, left_out = _served(corpus, subject)
    if left_out:
        yield left_out
    sample = choose(served.census, SAMPLE_PER_MODALITY, seed=0)
    subject.table, unreadable = measure(
        asks.host, served.census, subject.setting, sample, progress, files_of(served)
    )
    if unreadable:
        first = unreadable[0]
        yield Check(
            ITEMS_LOAD,
            "warn",
            f"{len(unreadable)} cannot be loaded, such as {first.path}: {first.reason}",
            "remove or convert them: such requests fail",
        )
    yield from traps.refusals(subject.table)
    admitted = traps.admitted(subject.table, subject.budget, subject.opened.knobs)
    if admitted is not None:
        yield admitted
    counts = {m: count.value for m, count in subject.counts.items()}
    for excess in excesses(subject.table, subject.budget, subject.plain, counts):
        yield excess_check(excess, line("max_num_seqs", excess.max_num_seqs))
    yield from _too_many(served.prompts, subject)
    fit = _fits(served, subject, asks)
    if fit is not None:
        yield fit


def _fits(corpus: Corpus, subject: Subject, asks: Budgets) -> Check | None:
    """R5 on the corpus' own prompts; without requests on its largest items, as many as the limits
    name.
    """
    table, budget, prompts = subject.table, subject.budget, corpus.prompts
    if not prompts.prompts():
        if subject.opened.encoder_decoder:
            return None
        heaviest = {m: table.heaviest(m) for m in table.modalities()}
        largest: dict[str, int] = {
            m: cost.tokens for m, cost in heaviest.items() if cost is not None
        }
        return fullest_fits(subject, asks, largest, own=True)
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
    return prompt_traps.fits(fit, longer=longer)


def _served(corpus: Corpus, subject: Subject) -> tuple[Corpus, Check | None]:
    """The corpus without what the configuration rejects as a whole."""
    served = {m for m, count in subject.counts.items() if count.value}
    gone = [m for m in corpus.census.modalities() if m not in served]
    if not gone:
        return corpus, None
    items = ", ".join(f"{corpus.census.items(m):,} {m} items" for m in gone)
    one = {m: 1 for m in gone if m in subject.opened.modalities}
    limits = subject.engine_args.get("limit_mm_per_prompt") or {}
    check = Check(
        MODALITIES_SERVED,
        "fail",
        f"{items} of the corpus are rejected: the configuration admits none",
        line("limit_mm_per_prompt", {**limits, **one}) if one else "serve them with another model",
    )
    return corpus.only(served), check


def _too_many(prompts: PromptCensus, subject: Subject) -> Iterator[Check]:
    counts = {m: count.value for m, count in subject.counts.items()}
    over = [entry for entry in prompts.signatures() if not entry.signature.within(counts)]
    if not over:
        return
    most = {m: max(e.signature.items(m) for e in prompts.signatures()) for m in counts}
    limits = subject.engine_args.get("limit_mm_per_prompt") or {}
    needed = {m: n for m, n in most.items() if n > counts[m]}
    yield Check(
        REQUESTS_ADMITTED,
        "fail",
        f"{sum(entry.count for entry in over):,} of {prompts.prompts():,} requests carry more "
        f"items than the limits admit, such as {over[0].exemplar.origin}: vLLM rejects them",
        line("limit_mm_per_prompt", {**limits, **needed}),
    )


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


def made_up(subject: Subject, host: EngineHost, folder: Path, progress: Progress) -> Corpus | None:
    """A corpus of the largest items that the configuration admits; None where it admits none. Its
    costs become the subject's.
    """
    with progress.step("making up the largest items"):
        requests = write_requests(subject, host, folder)
    if requests is None:
        return None
    corpus = read((), [requests], allowed_root=folder, cache=folder, progress=progress)
    sample = choose(corpus.census, SAMPLE_PER_MODALITY, seed=0)
    files = files_of(corpus)
    subject.table, _ = measure(host, corpus.census, subject.setting, sample, progress, files)
    return corpus
