"""Check a configuration against its own limits and against media.

Without a corpus, synthetic items replace it: the largest that vLLM admits, and smaller ones. Each
has its own colour or tone, because vLLM encodes equal items only once.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from typing import Any, Final

from mmcalib.census.census import choose_sample
from mmcalib.checks import items, reserve
from mmcalib.checks.check import Check, RemedyStyle, Taken, yaml_lines
from mmcalib.checks.facts import Alternatives, CheckFacts, LargestPrompt, OptionFacts
from mmcalib.checks.file import LANGUAGE_ONLY, effect_checks, untested_effects_check
from mmcalib.checks.limits import flat_option_check
from mmcalib.configs.opening import without_gpu_args
from mmcalib.corpus.chat import PART_OF, text_part, url_part
from mmcalib.decision.effects import Footprints, find_effects, probe_shapes
from mmcalib.decision.measure import measure
from mmcalib.decision.texts import Texts, longest_prompt
from mmcalib.domain.knobs import AreaCap, Knob, Setting, Value, merge_nested
from mmcalib.domain.memory import Budget
from mmcalib.domain.model import Cost, ModelInfo
from mmcalib.domain.shapes import Modality, VideoShape
from mmcalib.engine.host import EngineHost
from mmcalib.engine.messages import Blank, Measure
from mmcalib.errors import VllmMoved, VllmRefused
from mmcalib.gate.fit import Fit
from mmcalib.limits import effects, values
from mmcalib.limits.policy import TEXT_RESERVE_TOKENS
from mmcalib.limits.processor_cache import cache_floor, cut_to_context, largest_item_bytes
from mmcalib.media.blank import write_blank
from mmcalib.models.checkpoint import vocab_size
from mmcalib.models.cut import read_config
from mmcalib.options.run import SAMPLE_PER_MODALITY
from mmcalib.text import gib, plural
from mmcalib.workflows import judging
from mmcalib.workflows.corpus import LoadedCorpus, files_of, read_corpus
from mmcalib.workflows.validate.subject import (
    ValidatedConfig,
    add_own_items,
    add_worst_steps,
    describe_kv_cache,
)


def check_limits(subject: ValidatedConfig) -> Iterator[Check]:
    """Yield the checks that need no media, most severe first."""
    if subject.engine_args.get("language_model_only"):
        yield LANGUAGE_ONLY
        return
    without, gain = _try_without_profiled(subject)
    budget, prompt, longer, floor = subject.budget, None, False, None
    largest = dict[Modality, int]()
    # An encoder-decoder model's context holds no items, and vLLM caches none of them.
    if not subject.opened.encoder_decoder:
        if subject.corpus is None:
            prompt, longer = _fullest(subject, budget.max_tokens_per_item, own=False)
        # The largest request: all the items that the limits admit and the context holds.
        limit, plain = budget.encoder_budget_tokens, subject.plain
        admitted = cut_to_context(subject.items_per_prompt, subject.table, plain, limit)
        floor = cache_floor(admitted, subject.table, plain, limit)
        served = [m for m, count in subject.items_per_prompt.items() if count]
        largest = {m: largest_item_bytes(m, subject.table, plain, limit) for m in served}
    remedies = _find_remedies(subject)
    yield from judging.judge(
        judging.WRITTEN_RULES,
        CheckFacts(
            dialect=RemedyStyle.LINES,
            configuration=subject,
            prompt=prompt,
            longer=longer,
            model=subject.opened,
            tries=Alternatives(without, gain, remedies, subject.shortfall, floor, largest),
        ),
    )


def _fullest(
    subject: ValidatedConfig, largest: Mapping[Modality, int], *, own: bool
) -> tuple[LargestPrompt, bool]:
    """Return a prompt with the most items allowed, and whether a longer context would fit it."""
    prompt = LargestPrompt(items.largest_prompt(subject.counts, subject.engine_args, largest), own)
    total = items.needed_context(prompt.most, TEXT_RESERVE_TOKENS)
    return prompt, total > subject.budget.max_model_len and subject.takes_context(total)


def _find_remedies(subject: ValidatedConfig) -> list[str]:
    """Return remedies for the reserve that vLLM's own budget confirms, the most harmless first."""
    args = subject.engine_args
    if reserve.embeddings_only_check(subject.budget) is not None:
        return []
    if args.get("skip_mm_profiling"):
        return ["remove skip-mm-profiling"]
    if subject.adequacy.passes:
        return []
    hinted = list(hint_changes(args, subject.budget, subject.opened))
    priced = list[tuple[tuple[float, int], str]]()
    for changes, knob in hinted or [(dict[str, Any](), None)]:
        if whole := _with_whole_items(changes, subject):
            share, words = _count_smaller(knob, whole[1], subject)
            lost, lines = _price_lines(whole[0], words, subject)
            priced.append(((share, lost), lines))
    return [lines for _, lines in sorted(priced, key=itemgetter(0))]


def hint_changes(
    engine_args: Mapping[str, Any], budget: Budget, opened: ModelInfo
) -> Iterator[tuple[dict[str, Any], tuple[Knob, Value] | None]]:
    """Yield changes to try: the size hint as the cap of a knob, or no size hint."""
    modality = budget.profiled_modality
    limits = engine_args.get(values.LIMIT) or {}
    size = values.size_hint(limits, modality) if modality else {}
    if modality is None or not size:
        return
    plain = {values.LIMIT: {**limits, modality: values.plain_counts(limits)[modality]}}
    caps = (k for k in opened.knobs if isinstance(k, AreaCap) and k.modality == modality)
    for knob in caps:
        if (value := knob.value_for_size(size)) is not None:
            kwargs = merge_nested(engine_args.get(knob.argument), knob.kwargs(value))
            yield {**plain, knob.argument: kwargs}, (knob, value)
    yield plain, None


def _with_whole_items(
    changes: dict[str, Any], subject: ValidatedConfig
) -> tuple[dict[str, Any], Budget] | None:
    """Return the changes, with a batch of whole items if they need one, and the budget; or None."""
    for _ in range(2):
        args = {**subject.engine_args, **changes}
        budget = subject.accepts(args)
        if budget is None:
            return None
        if values.token_adequacy(args, budget, values.count_limits(args, subject.opened)).passes:
            return changes, budget
        largest = max(budget.max_tokens_per_item.values(), default=0)
        if not largest:
            return None
        batch = max(1, budget.max_num_batched_tokens // largest) * largest
        changes = {**changes, "max_num_batched_tokens": batch}
    return None


def _price_lines(
    changes: Mapping[str, Any], shrinks: str, subject: ValidatedConfig
) -> tuple[int, str]:
    """Return the lost bytes of KV cache (0: not rehearsed), and the lines with what they cost."""
    memory, lines = subject.memory, yaml_lines(changes)
    before = memory.calibrated if memory else None
    args = {**subject.engine_args, **changes}
    after = memory.prediction.rehearse_or_none(args) if memory else None
    if memory is None or before is None or after is None:
        return 0, f"{lines}  # {shrinks}"
    lost, costs = before.kv_cache_bytes - after.kv_cache_bytes, describe_kv_cache(before, after)
    if after.kv_cache_tokens is None:
        return lost, f"{subject.written.command('plan', memory.gpu)}  # {lines} alone {costs}"
    return lost, f"{lines}  # {costs}; {shrinks}"


def _count_smaller(
    knob: tuple[Knob, Value] | None, budget: Budget, subject: ValidatedConfig
) -> tuple[float, str]:
    """Return the share of items that shrink at the knob's value (1: unknown), and the words."""
    if knob is None:
        return 0, "shrinks no item"
    option, value = knob
    modality, corpus = option.modality, subject.corpus
    counted = corpus.census.counts(modality) if corpus is not None else None
    if counted is None or not counted.item_count():
        most, now = (one.max_tokens_per_item.get(modality, 0) for one in (budget, subject.budget))
        return 1, f"shrinks {modality} items above {most:,} tokens (now up to {now:,})"
    smaller = int(counted.counts[option.changed_mask(counted.shapes, value)].sum())
    total = plural(counted.item_count(), modality)
    return smaller / counted.item_count(), f"shrinks {smaller:,} of {total}"


def _try_without_profiled(subject: ValidatedConfig) -> tuple[Budget | None, str]:
    """Return the budget without the modality that sets it, if the file does not limit that one, and
    how much the KV cache grows, if known.
    """
    memory, worst = subject.memory, subject.budget.profiled_modality
    written = subject.engine_args.get(values.LIMIT) or {}
    others = [m for m, c in subject.counts.items() if c.value and m != worst]
    if worst is None or worst in written or not others:
        return None, ""
    args, gain = {**subject.engine_args, values.LIMIT: {**written, worst: 0}}, ""
    if memory and memory.calibrated and (less := memory.prediction.rehearse_or_none(args)):
        now, then = gib(memory.calibrated.kv_cache_bytes), gib(less.kv_cache_bytes)
        gain = f" and a KV cache on {memory.gpu.name} of {then} instead of {now}"
    return subject.accepts(args), gain


# Side lengths as shares of the largest: machines without a GPU cannot encode the whole.
_SHARES: Final = (1, 2, 4)
# Items of one size, and items in one prompt: enough large ones to fill a step.
_MOST: Final = 24
_MOST_IN_PROMPT: Final = 8


def _synthetic_requests(
    modality: Modality, subject: ValidatedConfig, folder: Path
) -> Iterator[dict[str, Any]]:
    """Yield chat requests, each with all the largest items that fit; their texts differ."""
    dummy, count = subject.plain.dummies.get(modality), subject.items_per_prompt[modality]
    if dummy is None or not count:
        return
    shapes = [dummy.shape(modality, subject.opened.audio_rate_hz, share) for share in _SHARES]
    measuring = Measure(subject.setting, tuple(map(Blank, shapes)))
    answers = subject.budgets.host.measure(measuring, "measuring synthetic items")
    step = subject.budget.encoder_budget_tokens
    room_tokens = subject.budget.max_model_len - TEXT_RESERVE_TOKENS
    for shape, answer in zip(shapes, answers, strict=True):
        cost = answer.cost
        if cost is None or not 0 < cost.embeds <= step or cost.tokens > room_tokens:
            continue
        together = min(count, _MOST_IN_PROMPT, room_tokens // cost.tokens)
        number = max(min(_MOST, math.ceil(step / cost.embeds)), together)
        urls = [write_blank(shape, n, folder).resolve().as_uri() for n in range(number)]
        for start in range(0, number, together):
            content: list[dict[str, Any]] = [text_part("Describe this." + "." * start)]
            content += [url_part(PART_OF[modality], url) for url in urls[start : start + together]]
            yield {"messages": [{"role": "user", "content": content}]}


def measure_minute_of_video(setting: Setting, host: EngineHost) -> Cost | None:
    """Return the cost of a minute of 720p video under this setting, or None if unknown."""
    request = Measure(setting, (Blank(VideoShape(1800, 30.0, 60.0, 1280, 720)),))
    (answer,) = host.measure(request, "measuring a minute of video")
    return answer.cost


def measure_corpus(
    corpus: LoadedCorpus, subject: ValidatedConfig
) -> tuple[ValidatedConfig, list[Check]]:
    """Measure the corpus; return the subject with its costs, and the checks of its items."""
    modalities = [m for m, count in subject.counts.items() if count.value]
    unserved = [m for m in corpus.census.modalities() if m not in modalities]
    left_out = {str(m): f"{corpus.census.items(m):,} {m} items" for m in unserved}
    corpus = corpus.only(modalities) if unserved else corpus
    host, progress, files = subject.budgets.host, subject.progress, files_of(corpus)
    sample = choose_sample(corpus.census, SAMPLE_PER_MODALITY)
    table, unreadable = measure(host, corpus.census, subject.setting, sample, progress, files)
    subject = replace(subject, table=table)
    prompt, longer = _longest(corpus, subject)
    facts = CheckFacts(
        dialect=RemedyStyle.LINES,
        configuration=subject,
        prompt=prompt,
        longer=longer,
        corpus=judging.corpus_facts(corpus, subject, subject.table, left_out, unreadable),
        model=subject.opened,
    )
    return subject, list(judging.judge(judging.MEASURED_RULES, facts))


def _longest(
    corpus: LoadedCorpus, subject: ValidatedConfig
) -> tuple[Fit | LargestPrompt | None, bool]:
    """Return the longest prompt, or largest items, and whether a longer context would fit them."""
    table, budget, opened = subject.table, subject.budget, subject.opened
    if not corpus.prompts.prompts():
        if opened.encoder_decoder:
            return None, False
        heaviest = {m: table.heaviest(m) for m in table.modalities()}
        largest = {m: cost.tokens for m, cost in heaviest.items() if cost is not None}
        return _fullest(subject, largest, own=True)
    fit = longest_prompt(
        corpus.prompts,
        table,
        subject.counts,
        budget,
        TEXT_RESERVE_TOKENS,
        Texts.of(subject.budgets.host, opened.modalities, corpus.texts),
        encoder_decoder=opened.encoder_decoder,
    )
    longer = fit is not None and not fit.fits_answers and subject.takes_context(fit.needed_tokens)
    return fit, longer


def probe_video(subject: ValidatedConfig) -> Iterator[Check]:
    """Check a typical video against the encoder cache; for runs without a corpus."""
    budget, setting, host = subject.budget, subject.setting, subject.budgets.host
    cost = None
    if subject.items_per_prompt.get("video"):
        with subject.progress.step("measuring a minute of video"):
            cost = measure_minute_of_video(setting, host)
    if cost is None:
        if check := items.own_largest_check(budget):
            yield check
        return
    share = items.room(budget) / cost.embeds
    slower = items.with_fewer_frames(subject.opened.knobs, setting.media_io_kwargs, share)
    if share < 1 and slower is not None:
        less = measure_minute_of_video(replace(setting, media_io_kwargs=slower), host)
        if less is None or less.embeds > items.room(budget):
            slower = None
    yield items.common_video_check(cost.embeds, budget, slower)


def add_synthetic_media(subject: ValidatedConfig, folder: Path) -> ValidatedConfig:
    """Return the subject with a corpus of its largest admitted items, if it admits any."""
    host, progress = subject.budgets.host, subject.progress
    with progress.step("making synthetic items"):
        folder.mkdir(parents=True, exist_ok=True)
        requests = [r for m in subject.counts for r in _synthetic_requests(m, subject, folder)]
    if not requests:
        return subject
    path = folder / "requests.jsonl"
    path.write_text("".join(json.dumps(r) + "\n" for r in requests), encoding="utf-8")
    corpus = read_corpus((), [path], allowed_root=folder, cache=folder, progress=progress)
    sample = choose_sample(corpus.census, SAMPLE_PER_MODALITY)
    table, _ = measure(host, corpus.census, subject.setting, sample, progress, files_of(corpus))
    return replace(subject, table=table, corpus=corpus)


def examine_config(
    subject: ValidatedConfig, served: Mapping[str, Any]
) -> tuple[ValidatedConfig, list[Check], list[Taken]]:
    """Return the subject with costs and worst steps, its checks, and the memory of its options.
    `served` has all arguments of `vllm serve`.
    """
    subject = add_worst_steps(subject)
    checks = list(check_limits(subject))
    memory, vocabulary = subject.memory, vocab_size(read_config(Path(subject.resolved.path)))
    options = OptionFacts(served, vocabulary)
    if memory is not None and memory.calibrated is not None:
        options = OptionFacts(served, vocabulary, memory.calibrated, memory.steps)
    facts = CheckFacts(RemedyStyle.LINES, configuration=subject, options=options)
    checks += judging.judge(judging.OPTION_RULES, facts)
    if subject.corpus is None:
        checks += probe_video(subject)
    else:
        subject, corpus_checks = measure_corpus(subject.corpus, subject)
        subject = add_own_items(subject)
        in_bytes = items.rehearsed_inputs(subject.memory.calibrated) if subject.memory else set()
        checks = [check for check in (*checks, *corpus_checks) if check.id not in in_bytes]
    checks += check_settings(subject)
    return subject, checks, [check.taken for check in checks if check.taken]


def check_settings(subject: ValidatedConfig) -> Iterator[Check]:
    """Switch each setting off once; try flat processor options on every served modality."""
    modalities = [m for m, count in subject.counts.items() if count.value]
    defaults, shapes = subject.opened.serve_defaults, probe_shapes(modalities, (subject.table,))
    footprints = Footprints(subject.budgets.host, subject.resolved.path, defaults, shapes)
    args = without_gpu_args(subject.engine_args, subject.opened.device)
    with subject.progress.step("testing each setting", len(effects.list_settings(args))) as task:
        for name in sorted(set(args.get(values.KWARGS) or ()) - set(effects.SCOPES.values())):
            yield from _check_flat_option(name, args, footprints)
        try:
            every, _ = find_effects(args, footprints, task)
        except (VllmMoved, VllmRefused) as error:
            yield untested_effects_check(error)
            return
    yield from effect_checks(every)


def _check_flat_option(name: str, args: dict[str, Any], footprints: Footprints) -> Iterator[Check]:
    """Check whether a flat processor option also changes items of other modalities."""
    shapes = footprints.shapes
    less = footprints.items(effects.remove_setting(args, (values.KWARGS, name)), shapes)
    changes = effects.most_changed_items(footprints.items(args, shapes), less)
    remedies = {}
    for modality in changes:
        scoped_args = effects.scope_option(args, name, modality)
        scoped_changes = effects.most_changed_items(footprints.items(scoped_args, shapes), less)
        if scoped_changes == {modality: changes[modality]}:
            remedies[modality] = scoped_args
    if check := flat_option_check(name, changes, remedies):
        yield check
