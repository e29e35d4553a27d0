"""Numbers in words, the same in every output: formatting happens here and nowhere else."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

from mmcalib.report.calibration import Calibration, CheckResult, EncoderBudget, Evidence

GIB = 1 << 30
MARKS = {"pass": "ok", "warn": "!!", "fail": "NO", "skip": "--"}


def number(value: float | None) -> str:
    """With thousands separators; a dash where there is nothing."""
    return "—" if value is None else f"{value:,g}" if value < 10 else f"{value:,.0f}"


def gib(value: int | None) -> str:
    return "—" if value is None else f"{value / GIB:.2f} GiB"


def share(value: float) -> str:
    """In per cent; what is neither nothing nor all never reads as such."""
    if 0 < value < 0.001:
        return "<0.1%"
    if 0.999 < value < 1:
        return ">99.9%"
    return f"{value:.1%}" if 0 < value < 1 else f"{value:.0%}"


def plain(text: str) -> str:
    """File names may hold line breaks and control characters; as escapes they are harmless."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def profile(budget: EncoderBudget) -> str:
    """What vLLM's startup profile runs."""
    if budget.profiled_modality is None:
        return "nothing"
    return f"{budget.profiled_items} × {budget.profiled_modality}"


def grouped(evidence: Iterable[Evidence]) -> list[tuple[list[str], list[str], Evidence]]:
    """Neighbours with one reason said once: (settings, their values, the first of them)."""
    found = []
    for _, run in groupby(evidence, key=lambda e: (e.reason, e.label, e.exemplar)):
        entries = list(run)
        values = [str(entry.value) for entry in entries]
        found.append(([entry.setting for entry in entries], values, entries[0]))
    return found


def rows(calibration: Calibration) -> list[tuple[str, str, str, str]]:
    """What vLLM would have reserved against what the calibrated configuration reserves:
    (what, default, calibrated, label).
    """
    before, after = calibration.budget.default, calibration.budget.calibrated
    memory = calibration.memory
    adequacy = "—" if after.adequacy is None else f"{after.adequacy:.2f}"
    found: list[tuple[str, str, str, str]] = [
        (
            "encoder budget, tokens",
            number(before.encoder_budget_tokens),
            number(after.encoder_budget_tokens),
            after.label,
        ),
        *(
            (
                f"largest {modality}, tokens",
                number(before.max_tokens_per_item.get(modality)),
                number(after.max_tokens_per_item.get(modality)),
                after.label,
            )
            for modality in {**before.max_tokens_per_item, **after.max_tokens_per_item}
        ),
        ("profiled at startup", profile(before), profile(after), after.label),
        ("profiled ÷ worst step, tokens", "—", adequacy, after.label),
        (
            "max_num_batched_tokens",
            number(before.max_num_batched_tokens),
            number(after.max_num_batched_tokens),
            after.label,
        ),
    ]
    peaks = (memory.default.activation_peak_bytes, memory.calibrated.activation_peak_bytes)
    if any(peak is not None for peak in peaks):
        found.append(("activation peak", gib(peaks[0]), gib(peaks[1]), "measured"))
    weights = memory.calibrated.weights_bytes
    if weights is not None:
        label = memory.calibrated.labels.get("weights_bytes", "computed")
        found.append(("weights", gib(memory.default.weights_bytes), gib(weights), label))
    return found


def check_line(check: CheckResult) -> str:
    return plain(f"{check.name}: {check.detail}")
