"""What stands on top of the page: its three headlines, and the line of facts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mmcalib import text
from mmcalib.derive.admission import admit
from mmcalib.domain.knobs import Label
from mmcalib.report import rows
from mmcalib.results.calibration import CalibrationDocument


@dataclass(frozen=True, slots=True)
class Headline:
    """`before` is empty where there is nothing to compare with; `bad` is what needs a look."""

    name: str
    before: str
    after: str
    detail: str
    label: Label
    bad: bool = False


def headlines(calibration: CalibrationDocument) -> tuple[Headline, Headline, Headline]:
    """In this order, whatever is known of them."""
    return _kv_cache(calibration), _worst_item(calibration), _rejected(calibration)


def _kv_cache(calibration: CalibrationDocument) -> Headline:
    before, after = calibration.memory.default, calibration.memory.calibrated
    if after.kv_cache_bytes is None:
        budget = calibration.budget
        return Headline(
            "Encoder budget, tokens",
            text.number(budget.default.encoder_budget_tokens),
            text.number(budget.calibrated.encoder_budget_tokens),
            "The KV cache is not known: no GPU was named. mmcalib run --gpu NAME predicts it.",
            budget.calibrated.label,
        )
    starts = after.kv_cache_tokens is not None
    at_once = (
        f", {text.number(after.max_concurrency)} requests of full length at once"
        if after.max_concurrency is not None
        else ""
    )
    none = "none" if before.kv_cache_bytes is not None else ""
    return Headline(
        f"KV cache tokens{rows.on_gpu(after)}",
        text.number(before.kv_cache_tokens) if before.kv_cache_tokens else none,
        text.number(after.kv_cache_tokens) if starts else "would not start",
        f"{text.gib(after.kv_cache_bytes)}{at_once}. By default {rows.kv_cache(before)}.",
        rows.label_of(after, "kv_cache_tokens"),
        bad=not starts,
    )


def _worst_item(calibration: CalibrationDocument) -> Headline:
    """The corpus' largest item under the calibrated settings, in the encoder cache."""
    name, parts = "Largest item, of the encoder cache", calibration.costs.modalities
    largest = {
        modality: max(one.embeds for one in part.known)
        for modality, part in parts.items()
        if part.known
    }
    if not largest:
        return Headline(name, "", "—", "The corpus has no items.", "measured")
    worst = max(largest, key=largest.__getitem__)
    before, cache = (
        budget.encoder_budget_tokens
        for budget in (calibration.budget.default, calibration.budget.calibrated)
    )
    found = calibration.corpus.modalities.get(worst)
    item = f"One {worst}, {text.plain(found.heaviest)}" if found else f"One {worst}"
    return Headline(
        name,
        "",
        f"{text.number(largest[worst])} of {text.number(cache)}",
        f"{item}, in tokens. By default the cache holds {text.number(before)}.",
        found.label if found else "measured",
        bad=largest[worst] > cache,
    )


def _rejected(calibration: CalibrationDocument) -> Headline:
    name = "Items that would be rejected"
    replay = calibration.startup.replay if calibration.startup else None
    replayed = (
        f"Replay: {replay.rejected} of {text.number(replay.admitted)} requests rejected, measured."
        if replay
        else "No request was replayed."
    )
    parts = calibration.costs.modalities.values()
    known = [one.shape for part in parts for one in part.known]
    refused = sum(len(part.refused) for part in parts)
    gate = calibration.gate
    over = sum(admit(gate, shape).answer == "no" for shape in known)
    rejected = refused + over
    others = sum(part.unlisted.shapes for part in parts if part.unlisted)
    # Those that are not listed cost no more than the lightest that is.
    total = refused + len(known) + (0 if over else others)
    which = "costliest shapes" if over and others else "shapes"
    # Nobody said how many items a request carries.
    assumed = "".join(
        f"Requests of more than {entry.value} {modality} are rejected, which is assumed. "
        for modality in calibration.corpus.modalities
        for entry in calibration.evidence
        if entry.label == "assumed"
        and entry.setting.removesuffix(".count") == f"limit_mm_per_prompt.{modality}"
    )
    return Headline(
        name,
        "",
        "none" if not rejected else f"{text.number(rejected)} shapes",
        f"{text.number(total - rejected)} of {text.number(total)} {which} of the corpus are "
        f"admitted. {assumed}{replayed}",
        "computed",
        bad=bool(rejected),
    )


def facts(calibration: CalibrationDocument) -> Iterator[str]:
    """The line below the title: what was calibrated, and for what."""
    corpus = calibration.corpus
    yield f"{text.number(corpus.items)} items"
    if corpus.prompts:
        yield f"{text.number(corpus.prompts)} requests"
    if corpus.skipped:
        yield f"{text.number(corpus.skipped)} skipped"
    if calibration.memory.calibrated.gpu:
        yield text.plain(calibration.memory.calibrated.gpu)
    yield f"vLLM {text.plain(calibration.tool['vllm'])}"
    yield text.plain(calibration.created_at.replace("T", " ")[:16])
