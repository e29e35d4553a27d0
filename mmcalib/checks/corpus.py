"""Corpus readable, served; assumptions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from mmcalib.checks.catalogue import (
    ASSUMED_ANSWER,
    ASSUMED_BATCH,
    ASSUMED_COUNT,
    ASSUMED_LOAD,
    AUDIO_LENGTH,
    BLANK_ITEMS,
    MEDIA_LOADING,
    MODALITIES_SERVED,
    MODALITY_LOADING,
    PROCESSING,
    READABLE_FILES,
    REAL_ITEMS,
    SAMPLES,
    TOOL_CALLS,
)
from mmcalib.checks.check import Check, Dialect, line
from mmcalib.checks.facts import CheckFacts, CheckStage, Rules
from mmcalib.derive.costs import Refusal
from mmcalib.derive.fit import Fit
from mmcalib.derive.policy import FIT, TEXT_RESERVE_TOKENS
from mmcalib.domain.shapes import MODALITIES, Modality
from mmcalib.text import one_line, several, without_particulars

_SHOWN = 3
# Decoders differ in how they pad the ends of a sound: by less than a frame of features, 10 ms.
_SAME_SAMPLES = 160


def _names(path: str, reason: str) -> tuple[str, ...]:
    """The item; and the reason, where it has particulars, which may be names, too."""
    return (path,) if without_particulars(reason) == reason else (path, reason)


def check_readable(facts: CheckFacts) -> Iterator[Check]:
    corpus = facts.corpus
    if not corpus.skipped:
        yield Check(READABLE_FILES, "pass", f"all {corpus.files} files read")
        return
    first = corpus.skipped[0]
    detail = f"{len(corpus.skipped)} skipped, such as {one_line(first.path)}: {first.reason}"
    names, remedy = _names(first.path, first.reason), "skipped.jsonl lists them with reasons"
    yield Check(READABLE_FILES, "warn", detail, remedy, names)


def check_stand_ins(facts: CheckFacts) -> Iterator[Check]:
    table = facts.decision.default_table
    if table.out_of_reach:
        others = f"; {table.compared} others were" if table.compared else ""
        yield Check(
            REAL_ITEMS,
            "warn",
            f"{table.out_of_reach} sampled items were not loaded, because their files are out of "
            f"reach: blanks of their size stand for them{others}",
            "run where they can be read; --allowed-media-domains reads remote ones",
        )
    if not table.mismatches:
        if count := table.compared:
            detail = f"{count} of {count} real items cost as many tokens as blanks of their size"
            yield Check(BLANK_ITEMS, "pass", detail)
        return
    first = table.mismatches[:_SHOWN]
    shown = "; ".join(
        f"{m.exemplar}: {m.real_tokens} tokens, blank {m.blank_tokens} ({m.why})" for m in first
    )
    yield Check(
        BLANK_ITEMS,
        "warn",
        f"{len(table.mismatches)} of {table.compared} sampled items differ; the real one counts: "
        f"{shown}",
        "raise --sample to measure more real items",
        tuple(m.exemplar for m in first),
    )


def check_sound_lengths(facts: CheckFacts) -> Iterator[Check]:
    """librosa decodes and resamples by other code than vLLM does."""
    table = facts.corpus.table
    if not table.resampled:
        if table.of("audio").has("real").any():
            detail = "not compared: librosa is not installed beside vLLM, or reads none of them"
            yield Check(AUDIO_LENGTH, "skip", detail, "pip install librosa")
        return
    differ = [
        one
        for one in table.resampled
        if abs(one.vllm_samples - one.librosa_samples) > _SAME_SAMPLES
    ]
    if not differ:
        detail = f"{len(table.resampled)} sampled sounds are as long in librosa, resampled"
        yield Check(AUDIO_LENGTH, "pass", detail)
        return
    shown = "; ".join(
        f"{one.exemplar}: vLLM {one.vllm_samples:,} samples, librosa {one.librosa_samples:,}"
        for one in differ[:_SHOWN]
    )
    yield Check(
        AUDIO_LENGTH,
        "warn",
        f"{len(differ)} of {len(table.resampled)} sampled sounds, resampled for the model, have "
        f"another length in librosa: {shown}; vLLM's counts",
        "listen to them, and convert them to WAV or FLAC",
        tuple(one.exemplar for one in differ[:_SHOWN]),
    )


def check_tools(facts: CheckFacts) -> Iterator[Check]:
    """OpenAI's default beside tools is that the model chooses, which needs a parser of its calls
    (`check_tool_choice` of vLLM's parsers, 0.32).
    """
    given = facts.configuration.engine_args
    if facts.corpus.tools and not (
        given.get("enable_auto_tool_choice") and given.get("tool_call_parser")
    ):
        yield Check(
            TOOL_CALLS,
            "warn",
            f"{facts.corpus.tools} of {facts.corpus.requests} requests have tools: vLLM rejects "
            "those that let the model choose without --enable-auto-tool-choice and "
            "--tool-call-parser",
            "-- --enable-auto-tool-choice --tool-call-parser NAME, of the model's own format",
        )


def check_loaded(facts: CheckFacts) -> Iterator[Check]:
    """What vLLM's loader fails on; most of a modality is a broken installation."""
    if unreadable := facts.corpus.unreadable:
        first = unreadable[0]
        detail = f"{len(unreadable)} cannot be loaded, such as {first.path}: {first.reason}"
        remedy = "remove or convert them: such requests fail"
        yield Check(MEDIA_LOADING, "warn", detail, remedy, _names(first.path, first.reason))


def check_accepted(facts: CheckFacts) -> Iterator[Check]:
    """Odd items are the user's affair; most of a modality refused is a broken installation."""
    table, dialect = facts.corpus.table, facts.dialect
    for modality in MODALITIES if dialect is Dialect.FLAGS else sorted(MODALITIES):
        failed = table.failed.get(modality, 0) if dialect is Dialect.FLAGS else 0
        loaded = int(table.of(modality).has("real").sum())
        if failed > loaded:
            yield Check(
                MODALITY_LOADING.of(modality),
                "fail",
                f"vLLM's own loader fails on {failed} of {failed + loaded} sampled {modality} "
                "items that other libraries read; skipped.jsonl has its words",
                "convert them, or install what vLLM needs to decode them",
            )
        if refused := [r for r in table.refusals if r.shape.modality == modality]:
            yield _refusal_check(refused, table.of(modality).items(), modality, dialect)


def _refusal_check(
    refused: Sequence[Refusal], taken: int, modality: Modality, dialect: Dialect
) -> Check:
    """`taken` items of the modality are not refused."""
    items, first, number = sum(r.count for r in refused), refused[0], dialect.number
    whatever = dialect.say(flags=" whatever the limits", lines="")
    return Check(
        PROCESSING.of(modality),
        "fail" if items > taken else "warn",
        f"vLLM refuses {number(items)} of {number(items + taken)}{whatever}, such as "
        f"{first.exemplar} ({first.shape}): {first.reason}",
        dialect.say(
            flags="remove or convert them, or install what the reason names: such requests will "
            "fail",
            lines="remove or convert them: such requests fail",
        ),
        _names(first.exemplar, first.reason),
    )


def check_served(facts: CheckFacts) -> Iterator[Check]:
    """Modalities of the corpus that the configuration rejects as a whole."""
    left_out = facts.corpus.left_out
    if not left_out:
        return
    if facts.dialect is Dialect.FLAGS:
        detail = f"left out: {'; '.join(left_out.values())}"
        yield Check(MODALITIES_SERVED, "warn", detail, "requests with them will be rejected")
        return
    one = {m: 1 for m in left_out if m in facts.model.modalities}
    limits = facts.configuration.engine_args.get("limit_mm_per_prompt") or {}
    yield Check(
        MODALITIES_SERVED,
        "fail",
        f"{', '.join(left_out.values())} of the corpus are rejected: the configuration admits none",
        line("limit_mm_per_prompt", {**limits, **one}) if one else "serve them with another model",
    )


def check_unseen(facts: CheckFacts) -> Iterator[Check]:
    """Modalities that were asked for with --count and of which the corpus has no item."""
    judged = facts.configuration
    for modality, count in judged.counts.items():
        if count.value and not judged.table.of(modality):
            most = judged.budget.max_tokens_per_item.get(modality, 0)
            yield Check(
                SAMPLES.of(modality),
                "warn",
                f"--count admits {count.value} {modality} items and the corpus holds none: vLLM's "
                f"own largest, {most} tokens, is reserved for",
                f"add {modality} files to --data",
            )


def check_counts(facts: CheckFacts) -> Iterator[Check]:
    for modality, count in facts.configuration.counts.items():
        if count.label != "assumed":
            continue
        why = "no request of the corpus carries one"
        if facts.corpus.requests == 0:
            why = "the corpus has no requests"
        yield Check(
            ASSUMED_COUNT.of(modality),
            "warn",
            f"{count.value} {modality} per prompt: {why}. vLLM answers a request that carries more "
            "with HTTP 400",
            f"--requests FILE counts them, --count {modality}=N says it",
        )


def check_answer_length(facts: CheckFacts) -> Iterator[Check]:
    """Where the context is made to fit: then an answer ends where it does."""
    policy, longest = facts.policy, facts.prompt
    unsaid = policy.text_reserve_tokens == TEXT_RESERVE_TOKENS
    if policy.max_model_len != FIT or not unsaid or not isinstance(longest, Fit):
        return
    if longest.longest.answer_tokens is None:
        what = "text and answer" if longest.longest.text is None else "the answer"
        yield Check(
            ASSUMED_ANSWER,
            "warn",
            f"{TEXT_RESERVE_TOKENS:,} tokens for {what}: the longest prompt does not say. With "
            f"--max-model-len fit vLLM cuts longer answers short",
            "--text-reserve-tokens N says it, max_tokens in the requests too",
        )


def served_answers(unsaid: int, tokens: int) -> Check:
    """Of `unsaid` requests that were served in rehearsal with answers of so many `tokens`."""
    return Check(
        ASSUMED_LOAD,
        "warn",
        f"{tokens:,} tokens in {several(unsaid, 'request')} of the rehearsed traffic, which do not "
        "say. Longer ones keep the KV cache longer: fewer requests run at once, and more wait",
        "max_tokens in the requests of --requests says it",
    )


def step(tokens: int, device: str) -> Check:
    """Where neither a GPU nor a number was named."""
    return Check(
        ASSUMED_BATCH,
        "warn",
        f"{tokens:,} tokens, from vllm serve's default on this machine ({device}). It is written, "
        "so it stays so on a GPU whose own default is another: slower prefill where that is more, "
        "more memory for the encoder where it is less",
        "--gpu NAME takes that GPU's default, --max-num-batched-tokens N says it",
    )


RULES: Final[Rules] = {
    check_readable: {CheckStage.DECIDED: 10, CheckStage.MEASURED: 10},
    check_stand_ins: {CheckStage.DECIDED: 20},
    check_sound_lengths: {CheckStage.DECIDED: 30, CheckStage.MEASURED: 30},
    check_loaded: {CheckStage.MEASURED: 40},
    check_accepted: {CheckStage.DECIDED: 40, CheckStage.MEASURED: 50},
    check_served: {CheckStage.DECIDED: 50, CheckStage.MEASURED: 20},
    check_unseen: {CheckStage.DECIDED: 130},
    check_counts: {CheckStage.DECIDED: 70},
    check_tools: {CheckStage.DECIDED: 85, CheckStage.MEASURED: 85},
    check_answer_length: {CheckStage.DECIDED: 100},
}
