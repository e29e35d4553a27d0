"""The three cards below the memory chart, and the line of facts below the title."""

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
    """One card; `before` is empty without a comparison, and `bad` marks a problem."""

    name: str
    before: str
    after: str
    detail: str
    label: Label
    bad: bool = False


def headlines(calibration: CalibrationDocument) -> tuple[Headline, Headline, Headline]:
    return _kv_cache(calibration), _worst_item(calibration), _rejected(calibration)


def _kv_cache(calibration: CalibrationDocument) -> Headline:
    before, after = calibration.memory.default, calibration.memory.calibrated
    if after.kv_cache_bytes is None:
        budget = calibration.budget
        return Headline(
            "Encoder budget, tokens",
            text.number(budget.default.encoder_budget_tokens),
            text.number(budget.calibrated.encoder_budget_tokens),
            "mmcalib run --gpu NAME predicts the KV cache of that GPU.",
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
        text.number(after.kv_cache_tokens) if starts else "does not start",
        f"{text.gib(after.kv_cache_bytes)}{at_once}. vLLM's defaults: {rows.kv_cache(before)}.",
        rows.label_of(after, "kv_cache_tokens"),
        bad=not starts,
    )


def _worst_item(calibration: CalibrationDocument) -> Headline:
    """Compare the corpus' largest item with the encoder cache, both in tokens."""
    name, parts = "Largest item in the encoder cache", calibration.costs.modalities
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
    item = f"One {worst}, {text.printable(found.heaviest)}" if found else f"One {worst}"
    return Headline(
        name,
        "",
        f"{text.number(largest[worst])} of {text.number(cache)}",
        f"{item}, in tokens. vLLM's defaults: {text.number(before)}.",
        found.label if found else "measured",
        bad=largest[worst] > cache,
    )


def _rejected(calibration: CalibrationDocument) -> Headline:
    name = "Rejected items"
    replay = calibration.startup.replay if calibration.startup else None
    replayed = (
        f"Replay: {replay.rejected} of {text.number(replay.admitted)} requests rejected."
        if replay
        else "mmcalib replayed no requests."
    )
    parts = calibration.costs.modalities.values()
    known = [one.shape for part in parts for one in part.known]
    refused = sum(len(part.refused) for part in parts)
    gate = calibration.gate
    over = sum(admit(gate, shape).answer == "no" for shape in known)
    rejected = refused + over
    others = sum(part.unlisted.shapes for part in parts if part.unlisted)
    # Unlisted shapes cost no more than the lightest listed one.
    total = refused + len(known) + (0 if over else others)
    which = "costliest shapes" if over and others else "shapes"
    assumed = "".join(
        f"vLLM rejects requests of more than {entry.value} {modality} (assumed). "
        for modality in calibration.corpus.modalities
        for entry in calibration.evidence
        if entry.label == "assumed"
        and entry.setting.removesuffix(".count") == f"limit_mm_per_prompt.{modality}"
    )
    return Headline(
        name,
        "",
        "none" if not rejected else f"{text.number(rejected)} shapes",
        f"vLLM admits {text.number(total - rejected)} of {text.number(total)} {which} of the "
        f"corpus. {assumed}{replayed}",
        "computed",
        bad=bool(rejected),
    )


def facts(calibration: CalibrationDocument) -> Iterator[str]:
    """Yield the facts below the title: corpus, GPU, version, date."""
    corpus = calibration.corpus
    yield f"{text.number(corpus.items)} items"
    if corpus.prompts:
        yield f"{text.number(corpus.prompts)} requests"
    if corpus.skipped:
        yield f"{text.number(corpus.skipped)} skipped"
    if calibration.memory.calibrated.gpu:
        yield text.printable(calibration.memory.calibrated.gpu)
    yield f"vLLM {text.printable(calibration.tool['vllm'])}"
    yield text.printable(calibration.created_at.replace("T", " ")[:16])
