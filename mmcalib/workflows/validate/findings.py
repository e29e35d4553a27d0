"""What follows from the file and its items.

Items that stand for a corpus which nobody gave: the largest that vLLM admits, and smaller ones.

They are blank, each of its own colour or tone, because equal items are encoded once.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from mmcalib.census.sample import choose
from mmcalib.checks import items, limits, reserve
from mmcalib.checks.check import Check, Dialect, Taken, line
from mmcalib.checks.corpus import MEDIA_SERVED
from mmcalib.checks.facts import CheckFacts, CheckStage, CorpusFacts, Fullest, Tries
from mmcalib.checks.file import SETTINGS_EFFECT, effect_checks
from mmcalib.checks.judge import judge
from mmcalib.corpus.chat import PART_OF, text_part, url_part
from mmcalib.decision.effects import Footprints, effects, witnesses
from mmcalib.decision.explore import BudgetSource
from mmcalib.decision.measure import measure
from mmcalib.decision.texts import Texts, longest_prompt
from mmcalib.derive.effects import settings
from mmcalib.derive.fit import Fit
from mmcalib.derive.policy import TEXT_RESERVE_TOKENS
from mmcalib.derive.processor_cache import CacheFloor, cache_floor, within_context
from mmcalib.domain.knobs import Setting
from mmcalib.domain.memory import Budget, Dummy
from mmcalib.domain.model import Cost
from mmcalib.domain.shapes import AudioShape, ImageShape, Modality, Shape, VideoShape
from mmcalib.engine.host import EngineHost
from mmcalib.engine.messages import Blank, Measure
from mmcalib.engine.vllm_config import here
from mmcalib.errors import VllmMoved, VllmRefused
from mmcalib.media.blank import write_blank
from mmcalib.memory.checks import known_in_bytes
from mmcalib.models.resolve import cache_dir
from mmcalib.options.run import SAMPLE_PER_MODALITY
from mmcalib.progress import Progress
from mmcalib.text import several
from mmcalib.workflows.corpus import ReadCorpus, files_of, read, requests_over
from mmcalib.workflows.validate.config import Media, ReadableConfig, ValidateSession
from mmcalib.workflows.validate.subject import (
    OpenedConfig,
    ServedMemory,
    Subject,
    accepts,
    gain,
    kv_cache_words,
    option_facts,
    plan_command,
    room,
    takes_context,
    with_own_items,
    with_worst_steps,
)


def findings(
    subject: Subject,
    asks: BudgetSource,
    memory: ServedMemory | None,
    corpus: ReadCorpus | None,
    config: str,
) -> Iterator[Check]:
    """Of the file `config`, in the order in which they would hurt. What real items decide is left
    to them.
    """
    args = subject.engine_args
    if args.get("language_model_only"):
        detail = "language_model_only: every image, video and clip is rejected"
        yield Check(MEDIA_SERVED, "warn", detail, "remove language-model-only")
        return
    gained = gain(memory, subject) if memory else ""
    without = _without(subject, asks)
    prompt = None if corpus is not None else _fullest(subject)
    longer = prompt is not None and takes_fullest(subject, asks, prompt)
    tries = Tries(
        without=without,
        gain=gained,
        cures=_cures(subject, asks, memory, corpus, config),
        room=room(memory, subject) if memory else None,
        cache_floor=None if subject.opened.encoder_decoder else _cache_floor(subject),
    )
    yield from judge(
        CheckStage.WRITTEN,
        CheckFacts(
            dialect=Dialect.LINES,
            configuration=subject,
            prompt=prompt,
            longer=longer,
            given_model=subject.opened,
            given_tries=tries,
        ),
    )


def _cache_floor(subject: Subject) -> CacheFloor:
    """Of as many largest items as the limits admit and the context holds."""
    limit = subject.budget.encoder_budget_tokens
    counts = {m: count.value for m, count in subject.counts.items()}
    admitted = within_context(counts, subject.table, subject.plain, limit)
    return cache_floor(admitted, subject.table, subject.plain, limit)


def _fullest(subject: Subject) -> Fullest | None:
    """A prompt of vLLM's own largest items; None where items are no part of the context."""
    if subject.opened.encoder_decoder:
        return None
    return fullest(subject, subject.budget.max_tokens_per_item, own=False)


def fullest(subject: Subject, largest: Mapping[Modality, int], *, own: bool) -> Fullest:
    """A prompt of as many of these largest items as the limits name."""
    return Fullest(items.fullest(subject.counts, subject.engine_args, largest), own)


def takes_fullest(subject: Subject, asks: BudgetSource, prompt: Fullest) -> bool:
    """Whether the model takes a longer context than the configuration has, which holds it."""
    total = items.needed(prompt.most, TEXT_RESERVE_TOKENS)
    return total > subject.budget.max_model_len and takes_context(asks, subject.engine_args, total)


@dataclass(frozen=True, slots=True)
class _Remedy:
    """Lines that make R4 pass in tokens, and what they cost in words. `smaller` is the share of the
    user's items that they make smaller, 1 where that is not known; `lost_bytes` of KV cache go with
    them, where rehearsed.
    """

    lines: str
    costs: str
    smaller: float
    lost_bytes: int

    def __str__(self) -> str:
        """Lines of YAML, with what they cost as a comment."""
        return f"{self.lines}  # {self.costs}"


def _cures(
    subject: Subject,
    asks: BudgetSource,
    memory: ServedMemory | None,
    corpus: ReadCorpus | None,
    config: str,
) -> list[str]:
    """Remedies of R4 in tokens that vLLM's own budget was asked about, the harmless one first. One
    that would not start needs more, which `plan` finds.
    """
    args = subject.engine_args
    if reserve.embeddings_alone(subject.budget) is not None:
        return []
    if args.get("skip_mm_profiling"):
        return ["remove skip-mm-profiling"]
    if subject.adequacy.passes:
        return []
    every = list(reserve.cures(args, subject.budget, subject.opened)) or [reserve.Cure(args, "")]
    tried = (_mended(cure, subject, asks) for cure in every)
    found = [
        _priced(cure, budget, subject, memory, corpus, config)
        for cure, budget in filter(None, tried)
    ]
    return list(map(str, sorted(found, key=lambda one: (one.smaller, one.lost_bytes))))


def _mended(
    cure: reserve.Cure, subject: Subject, asks: BudgetSource
) -> tuple[reserve.Cure, Budget] | None:
    """The cure, with a batch of whole items where it takes one, since the profile rounds down to
    them, and its budget; None where it does not help.
    """
    batch: dict[str, object] = {}
    for _ in range(2):
        args = {**cure.engine_args, **batch}
        budget = accepts(asks, args)
        if budget is None:
            return None
        if reserve.reserved(args, budget, limits.counts(args, subject.opened)).passes:
            lines = [cure.lines, *(line(name, value) for name, value in batch.items())]
            whole = " and ".join(filter(None, lines))
            return replace(cure, engine_args=args, lines=whole), budget
        largest = max(budget.max_tokens_per_item.values(), default=0)
        if not largest:
            return None
        whole_items = max(1, budget.max_num_batched_tokens // largest) * largest
        batch = {"max_num_batched_tokens": whole_items}
    return None


def _priced(
    cure: reserve.Cure,
    budget: Budget,
    subject: Subject,
    memory: ServedMemory | None,
    corpus: ReadCorpus | None,
    config: str,
) -> _Remedy:
    """The cure with what it costs in KV cache and in the size of items."""
    before = memory.config if memory else None
    after = memory.prediction.tried(cure.engine_args) if memory else None
    share, words = _smaller(cure, budget, subject, corpus)
    if memory is None or before is None or after is None:
        return _Remedy(cure.lines, words, share, 0)
    lost, costs = before.kv_cache_bytes - after.kv_cache_bytes, kv_cache_words(before, after)
    if after.kv_cache_tokens is None:
        alone = f"{cure.lines} alone {costs}"
        return _Remedy(plan_command(memory, config), alone, share, lost)
    return _Remedy(cure.lines, f"{costs}; {words}", share, lost)


def _smaller(
    cure: reserve.Cure, budget: Budget, subject: Subject, corpus: ReadCorpus | None
) -> tuple[float, str]:
    """The share of items that a cure makes smaller, in words too."""
    if cure.knob is None:
        return 0, "makes no item smaller"
    modality = cure.knob.modality
    counted = corpus.census.counts(modality) if corpus is not None else None
    if counted is None or not counted.items():
        most, now = (one.max_tokens_per_item.get(modality, 0) for one in (budget, subject.budget))
        return 1, f"makes {modality}s of more than {most:,} tokens smaller (now up to {now:,})"
    smaller = int(counted.counts[cure.knob.changed(counted.shapes, cure.value)].sum())
    of = several(counted.items(), modality)
    return smaller / counted.items(), f"makes {smaller:,} of {of} smaller"


def _without(subject: Subject, asks: BudgetSource) -> Budget | None:
    """The budget if the modality that sets it, and that nobody limits, were switched off."""
    args, worst = subject.engine_args, subject.budget.profiled_modality
    written = args.get(limits.LIMIT) or {}
    others = [m for m, c in subject.counts.items() if c.value and m != worst]
    if worst is None or worst in written or not others:
        return None
    return accepts(asks, {**args, limits.LIMIT: {**written, worst: 0}})


# Side lengths as shares of the largest: machines without a GPU cannot afford the whole.
_SHARES: Final = (1, 2, 4)
# Items of one size, and items in one prompt: enough to fill a step of large ones.
_MOST: Final = 24
_MOST_IN_PROMPT: Final = 8
_FPS: Final = 2


def write_requests(subject: Subject, host: EngineHost, folder: Path) -> Path | None:
    """A file of chat requests over made-up media in `folder`: per served modality as many of the
    largest admitted items as limits and context allow; None where nothing is served.
    """
    folder.mkdir(parents=True, exist_ok=True)
    requests = [r for m in subject.counts for r in _of_modality(m, subject, host, folder)]
    if not requests:
        return None
    path = folder / "requests.jsonl"
    path.write_text("".join(json.dumps(r) + "\n" for r in requests), encoding="utf-8")
    return path


def _of_modality(
    modality: Modality, subject: Subject, host: EngineHost, folder: Path
) -> Iterator[dict[str, Any]]:
    dummy, count = subject.plain.dummies.get(modality), subject.counts[modality].value
    if dummy is None or not count:
        return
    shapes = list(_shapes(modality, dummy, subject.opened.audio_rate_hz))
    blanks = tuple(Blank(shape) for shape in shapes)
    answers = host.measure(Measure(subject.setting, blanks), "measuring made-up items")
    step = subject.budget.encoder_budget_tokens
    room = subject.budget.max_model_len - TEXT_RESERVE_TOKENS
    for shape, answer in zip(shapes, answers, strict=True):
        cost = answer.cost
        if cost is None or not 0 < cost.embeds <= step or cost.tokens > room:
            continue
        together = min(count, _MOST_IN_PROMPT, room // cost.tokens)
        items = min(_MOST, math.ceil(step / cost.embeds))
        paths = [write_blank(shape, n, folder) for n in range(max(items, together))]
        for start in range(0, len(paths), together):
            yield _request(modality, paths[start : start + together], start)


def _request(modality: Modality, paths: Sequence[Path], number: int) -> dict[str, Any]:
    """Texts differ in length, so that each request counts as one of its own."""
    content: list[dict[str, Any]] = [text_part("Describe this." + "." * number)]
    content += [url_part(PART_OF[modality], path.resolve().as_uri()) for path in paths]
    return {"messages": [{"role": "user", "content": content}]}


def _shapes(modality: Modality, dummy: Dummy, rate_hz: int | None) -> Iterator[Shape]:
    """The shape of the largest item, and smaller ones."""
    size = dummy.size
    for share in _SHARES:
        if modality == "audio":
            rate = rate_hz or 16_000
            yield AudioShape(max(1, size["length"] // share), rate)
            continue
        width, height = _even(size["width"] // share), _even(size["height"] // share)
        if modality == "image":
            yield ImageShape(width, height)
            continue
        frames = size["num_frames"]
        yield VideoShape(frames, float(_FPS), frames / _FPS, width, height)


def _even(pixels: int) -> int:
    return max(56, pixels - pixels % 2)


def minute_of_video(setting: Setting, host: EngineHost) -> Cost | None:
    """What a minute of 720p video costs as a server with this setting samples it; None where it
    cannot be had.
    """
    request = Measure(setting, (Blank(VideoShape(1800, 30.0, 60.0, 1280, 720)),))
    (answer,) = host.measure(request, "measuring a minute of video")
    return answer.cost


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
        check = items.budgeted(budget)
        if check is not None:
            yield check
        return
    share = items.room(budget) / cost.embeds
    slower = items.slower(subject.opened.knobs, setting.media_io_kwargs, share)
    if share < 1 and slower is not None:
        less = minute_of_video(replace(setting, media_io_kwargs=slower), host)
        if less is None or less.embeds > items.room(budget):
            slower = None
    yield items.probed("a minute of 720p video", cost.embeds, budget, slower)


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


@dataclass(frozen=True, slots=True)
class Examined:
    """`subject` has the costs of the user's `corpus`; `taken` is the memory that options take
    beside the profile.
    """

    subject: Subject
    corpus: ReadCorpus | None
    memory: ServedMemory | None
    taken: tuple[Taken, ...]
    checks: tuple[Check, ...]


def examine(
    session: ValidateSession,
    config: ReadableConfig,
    opened: OpenedConfig,
    corpus: ReadCorpus | None,
) -> Examined:
    subject, memory, asks = opened.subject, opened.memory, opened.asks
    if memory is not None:
        memory = with_worst_steps(memory, subject)
    checks = list(findings(subject, asks, memory, corpus, str(session.job.config)))
    options = option_facts(subject, memory, config.served)
    traps = CheckFacts(Dialect.LINES, configuration=subject, given_options=options)
    checks += judge(CheckStage.OPTIONS, traps)
    if corpus is None:
        checks += probed(subject, session.host, session.progress)
    else:
        subject, found = measured(corpus, subject, asks, session.progress)
        checks += found
        if memory is not None:
            memory = with_own_items(memory, subject)
            known = known_in_bytes(memory.config)
            checks = [check for check in checks if check.id not in known]
    checks += setting_checks(subject, session.host, session.progress)
    taken = tuple(check.taken for check in checks if check.taken)
    return Examined(subject, corpus, memory, taken, tuple(checks))


def setting_checks(subject: Subject, host: EngineHost, progress: Progress) -> Iterator[Check]:
    """Each setting switched off once; flat processor options tried on every served modality."""
    served = [m for m, count in subject.counts.items() if count.value]
    defaults, shown = subject.opened.serve_defaults, witnesses(served, (subject.table,))
    asked = Footprints(host, subject.resolved.path, defaults, shown)
    args = here(subject.engine_args, subject.opened.device)
    with progress.step("switching each setting off once", len(settings(args))) as task:
        yield from _bleeding(args, served, asked)
        try:
            found, _ = effects(args, asked, task)
        except (VllmMoved, VllmRefused) as error:
            yield Check(SETTINGS_EFFECT, "skip", f"not asked: {error.message}")
            return
    yield from effect_checks(found)


def _bleeding(
    args: dict[str, object], served: list[Modality], asked: Footprints
) -> Iterator[Check]:
    for name in limits.flat(args):
        with_ = asked.items(args, asked.witnesses)
        less = asked.items(limits.without(args, name), asked.witnesses)
        moved = limits.changed(with_, less)
        remedies = {}
        for modality in moved:
            tried = limits.scoped(args, name, modality)
            alone = limits.changed(asked.items(tried, asked.witnesses), less)
            if alone == {modality: moved[modality]}:
                remedies[modality] = tried
        check = limits.bleeding(name, moved, remedies)
        if check is not None:
            yield check
