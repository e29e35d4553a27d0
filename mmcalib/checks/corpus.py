"""Checks of the data: is it readable, does vLLM load it, and what was assumed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mmcalib.checks import catalogue as ids
from mmcalib.checks.check import Check, RemedyStyle, Status, yaml_line
from mmcalib.checks.facts import CheckFacts
from mmcalib.domain.shapes import MODALITIES, UNKNOWN_CONTENT, EncodedItem
from mmcalib.gate.bounds import ServerRefusal
from mmcalib.gate.fit import Fit
from mmcalib.limits.policy import FIT, TEXT_RESERVE_TOKENS
from mmcalib.limits.values import LIMIT
from mmcalib.text import one_line, plural, reason_kind

_SHOWN = 3
_REMOVE = "remove or convert them"
_SET_LENGTH = "max_tokens in the requests, or --text-reserve-tokens N"
# Decoders pad the ends of a sound differently, by less than a frame of features: 10 ms.
_SAME_SAMPLES = 160


def _names(path: str, reason: str) -> tuple[str, ...]:
    """The item, and the reason if its details may contain a name."""
    return (path,) if reason_kind(reason) == reason else (path, reason)


def check_readable(facts: CheckFacts) -> Iterator[Check]:
    corpus = facts.corpus
    if not corpus.skipped:
        given = f"; {plural(corpus.given, 'item')} given by size: {UNKNOWN_CONTENT}"
        detail = f"all {corpus.files} files read{given if corpus.given else ''}"
        yield Check(ids.READABLE_FILES, "pass", detail)
        return
    first = corpus.skipped[0]
    detail = f"{len(corpus.skipped)} skipped, for example {one_line(first.path)}: {first.reason}"
    names, remedy = _names(first.path, first.reason), "skipped.jsonl lists them with reasons"
    yield Check(ids.READABLE_FILES, "warn", detail, remedy, names)


def check_blank_items(facts: CheckFacts) -> Iterator[Check]:
    table = facts.decision.default_table
    if table.out_of_reach:
        others = f"; {plural(table.compared, 'other')} could" if table.compared else ""
        detail = f"{table.out_of_reach} sampled items could not be read here, so blank items of "
        detail += f"the same size were measured{others}"
        remedy = "run where the files are, or --allowed-media-domains for remote ones"
        yield Check(ids.REAL_ITEMS, "warn", detail, remedy)
    if not table.mismatches:
        if count := table.compared:
            detail = f"{count} of {count} real items take as many tokens as blank ones"
            yield Check(ids.BLANK_ITEMS, "pass", detail)
        return
    first = table.mismatches[:_SHOWN]
    shown = "; ".join(
        f"{m.exemplar}: {m.real_tokens} tokens, blank {m.blank_tokens} ({m.why})" for m in first
    )
    detail = f"{len(table.mismatches)} of {table.compared} sampled items take other tokens than "
    detail += f"blank ones; the real ones count: {shown}"
    remedy = "--sample N measures more real items"
    yield Check(ids.BLANK_ITEMS, "warn", detail, remedy, tuple(m.exemplar for m in first))


def check_sound_lengths(facts: CheckFacts) -> Iterator[Check]:
    """Compare with librosa, which decodes and resamples with other code than vLLM."""
    table = facts.corpus.table
    if not table.resampled:
        if table.columns_of("audio").basis_mask("real").any():
            detail = "not compared: librosa is missing or reads no sampled file"
            yield Check(ids.AUDIO_LENGTH, "skip", detail, "pip install librosa")
        return
    differ = [r for r in table.resampled if abs(r.vllm_samples - r.librosa_samples) > _SAME_SAMPLES]
    if not differ:
        detail = f"{len(table.resampled)} resampled sounds have the same length in librosa"
        yield Check(ids.AUDIO_LENGTH, "pass", detail)
        return
    first = differ[:_SHOWN]
    shown = "; ".join(
        f"{one.exemplar}: vLLM {one.vllm_samples:,} samples, librosa {one.librosa_samples:,}"
        for one in first
    )
    detail = f"{len(differ)} of {len(table.resampled)} resampled sounds have another length in "
    detail += f"librosa; vLLM's length counts: {shown}"
    remedy, names = "listen to them, and convert them to WAV or FLAC", (r.exemplar for r in first)
    yield Check(ids.AUDIO_LENGTH, "warn", detail, remedy, tuple(names))


def check_tools(facts: CheckFacts) -> Iterator[Check]:
    """With tools, OpenAI's default lets the model choose, which needs a parser of tool calls
    (`check_tool_choice` of vLLM's parsers, 0.32).
    """
    given = facts.configuration.engine_args
    if facts.corpus.tools and not (
        given.get("enable_auto_tool_choice") and given.get("tool_call_parser")
    ):
        detail = f"{facts.corpus.tools} of {facts.corpus.requests} requests have tools. vLLM "
        detail += "rejects them without --enable-auto-tool-choice and --tool-call-parser"
        remedy = "-- --enable-auto-tool-choice --tool-call-parser NAME, for the model's format"
        yield Check(ids.TOOL_CALLS, "warn", detail, remedy)


@dataclass(frozen=True, slots=True)
class RefusedItems:
    """`count` items that the server rejects for one reason; `exemplar` is the path of one."""

    file: EncodedItem
    refusal: ServerRefusal
    count: int
    exemplar: str


def rejected_items_check(left_out: Sequence[RefusedItems], items: int, includes: str) -> Check:
    """Warn about rejected items of all; the command `includes` admits some, if any does."""
    reasons: dict[str, RefusedItems] = {}
    for one in left_out:
        reasons.setdefault(one.refusal.variable or one.refusal.remedy, one)
    first = list(reasons.values())[:_SHOWN]
    shown = "; ".join(f"{one_line(one.exemplar)}: {one.refusal.reason}" for one in first)
    detail = f"the server rejects {sum(one.count for one in left_out)} of {items} items under any "
    detail += f"limits; mmcalib left them out: {shown}"
    others = [one.refusal.remedy for one in reasons.values() if not one.refusal.variable]
    remedy = "; ".join([*filter(None, [includes]), *others])
    return Check(ids.SERVER_LIMITS, "warn", detail, remedy, tuple(one.exemplar for one in first))


def rejected_request_check(origin: str, refusal: ServerRefusal) -> Check:
    detail = f"the server rejects {origin}: {refusal.reason}"
    return Check(ids.SERVER_LIMITS, "warn", detail, refusal.remedy, (origin,))


def check_loaded(facts: CheckFacts) -> Iterator[Check]:
    """Warn about items that vLLM's loader cannot open."""
    if unreadable := facts.corpus.unreadable:
        first = unreadable[0]
        detail = f"vLLM cannot load {len(unreadable)}, such as {first.path}: {first.reason}"
        yield Check(ids.MEDIA_LOADING, "warn", detail, _REMOVE, _names(first.path, first.reason))


def check_accepted(facts: CheckFacts) -> Iterator[Check]:
    """Fail if vLLM rejects most of a modality, which means a broken installation; else warn."""
    table, dialect = facts.corpus.table, facts.dialect
    for modality in MODALITIES if dialect is RemedyStyle.FLAGS else sorted(MODALITIES):
        failed = table.failed.get(modality, 0) if dialect is RemedyStyle.FLAGS else 0
        loaded = int(table.columns_of(modality).basis_mask("real").sum())
        if failed > loaded:
            detail = f"vLLM's loader fails on {failed} of {failed + loaded} sampled {modality} "
            detail += "items that other libraries read; skipped.jsonl has the errors"
            remedy = "convert them, or install vLLM's decoder for them"
            yield Check(ids.MODALITY_LOADING.of(modality), "fail", detail, remedy)
        if refused := [r for r in table.refusals if r.shape.modality == modality]:
            items, first, number = sum(r.count for r in refused), refused[0], dialect.number
            accepted = table.columns_of(modality).item_count()
            status: Status = "fail" if items > accepted else "warn"
            detail = f"vLLM rejects {number(items)} of {number(items + accepted)} with any "
            detail += f"settings, such as {first.exemplar} ({first.shape}): {first.reason}"
            remedy = f"{_REMOVE}: requests with them fail"
            names = _names(first.exemplar, first.reason)
            yield Check(ids.PROCESSING.of(modality), status, detail, remedy, names)


def check_served(facts: CheckFacts) -> Iterator[Check]:
    """Name modalities of the data that the configuration does not admit."""
    left_out = facts.corpus.left_out
    if not left_out:
        return
    if facts.dialect is RemedyStyle.FLAGS:
        detail = f"left out: {'; '.join(left_out.values())}"
        yield Check(ids.MODALITIES_SERVED, "warn", detail, "vLLM will reject requests with them")
        return
    limits = dict(facts.configuration.engine_args.get(LIMIT) or {})
    one = {m: 1 for m in left_out if m in facts.model.modalities}
    remedy = yaml_line(LIMIT, limits | one) if one else "use a model that takes them"
    detail = f"the configuration admits none, but the data has {', '.join(left_out.values())}"
    yield Check(ids.MODALITIES_SERVED, "fail", detail, remedy)


def check_unseen(facts: CheckFacts) -> Iterator[Check]:
    """Warn about modalities that --count admits and the data does not have."""
    judged = facts.configuration
    for modality, count in judged.counts.items():
        if count.value and not judged.table.columns_of(modality):
            most = judged.budget.max_tokens_per_item.get(modality, 0)
            detail = f"--count admits {count.value} {modality} items and the data has none, so "
            detail += f"vLLM's own largest of {most} tokens was assumed"
            yield Check(ids.SAMPLES.of(modality), "warn", detail, f"add {modality} files to --data")


def check_counts(facts: CheckFacts) -> Iterator[Check]:
    for modality, count in facts.configuration.counts.items():
        if count.label != "assumed":
            continue
        why = "no request carries one" if facts.corpus.requests else "there are no requests"
        detail = f"{count.value} {modality} per prompt, because {why}. vLLM rejects requests with "
        detail += "more (HTTP 400)"
        remedy = f"--requests FILE, or --count {modality}=N"
        yield Check(ids.ASSUMED_COUNT.of(modality), "warn", detail, remedy)


def check_answer_length(facts: CheckFacts) -> Iterator[Check]:
    """Warn if --max-model-len fit had to assume the length of an answer, which it then limits."""
    policy, longest = facts.policy, facts.prompt
    unsaid = policy.text_reserve_tokens == TEXT_RESERVE_TOKENS
    if policy.max_model_len != FIT or not unsaid or not isinstance(longest, Fit):
        return
    if longest.longest.answer_tokens is None:
        what = "text and answer" if longest.longest.text is None else "the answer"
        detail = f"{TEXT_RESERVE_TOKENS:,} tokens for {what}, because the longest request sets no "
        detail += "max_tokens. With --max-model-len fit vLLM cuts longer answers short"
        yield Check(ids.ASSUMED_ANSWER, "warn", detail, _SET_LENGTH)


def assumed_load_check(unsaid: int, tokens: int) -> Check:
    """The check for `unsaid` requests whose simulated answers had `tokens`."""
    detail = f"{plural(unsaid, 'request')} set no max_tokens; assumed {tokens:,}. Longer answers "
    detail += "reduce concurrency"
    return Check(ids.ASSUMED_LOAD, "warn", detail, _SET_LENGTH)


def assumed_batch_check(tokens: int, device: str) -> Check:
    """The check for a run without --gpu and --max-num-batched-tokens."""
    detail = f"{tokens:,} tokens, vllm serve's default on this machine ({device}). A GPU with a "
    detail += "larger default prefills slower with it, one with a smaller default needs more "
    detail += "encoder memory"
    return Check(ids.ASSUMED_BATCH, "warn", detail, "--gpu NAME, or --max-num-batched-tokens N")
