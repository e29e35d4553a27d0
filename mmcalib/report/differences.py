"""Two calibrations, or two rehearsals, side by side: what differs in settings and figures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from mmcalib.report import words
from mmcalib.report.memory import memory_rows
from mmcalib.results.calibration import CalibrationDocument
from mmcalib.results.memory import Rehearsal
from mmcalib.results.part import verdict_words
from mmcalib.wording import number, plain

NOTHING = "—"
Difference = tuple[str, str, str]
# Of a rehearsal, besides its figures.
_SUBJECT = (
    *("starts", "model", "gpu", "vllm", "runner", "sampler", "attention", "encoder_attention"),
    *("dtype", "tensor_parallel_size"),
)


def differences(
    old: CalibrationDocument, new: CalibrationDocument
) -> Mapping[str, list[Difference]]:
    """By part, (what, old, new) of all that is not the same; parts without any are left out."""
    found = {
        "What was calibrated": _unlike(_about(old), _about(new)),
        "Settings": _unlike(_settings(old), _settings(new)),
        "What vLLM reserves, calibrated": _unlike(_reserved(old), _reserved(new)),
        "Checks": _unlike(_checks(old), _checks(new)),
    }
    return {part: rows for part, rows in found.items() if rows}


def rehearsal_differences(old: Rehearsal, new: Rehearsal) -> Mapping[str, list[Difference]]:
    """The same of two rehearsals."""
    found = {
        "What was rehearsed": _unlike(_subject(old), _subject(new)),
        "Memory": _unlike(_memory(old), _memory(new)),
        "Encoder budget": _unlike(_budget(old), _budget(new)),
    }
    return {part: rows for part, rows in found.items() if rows}


def _unlike(old: Mapping[str, str], new: Mapping[str, str]) -> list[Difference]:
    return [
        (plain(name), plain(old.get(name, NOTHING)), plain(new.get(name, NOTHING)))
        for name in dict.fromkeys([*old, *new])
        if old.get(name) != new.get(name)
    ]


def _about(shown: CalibrationDocument) -> dict[str, str]:
    corpus = shown.corpus
    about = {
        "verdict": verdict_words(shown.verdict, shown.checks, shown.corpus.losses()),
        "model": shown.model.id,
        "vLLM": shown.tool.vllm,
        "transformers": shown.tool.transformers,
        "items": number(corpus.items),
        "requests": number(corpus.prompts),
        "skipped": number(corpus.skipped),
    }
    for modality, found in corpus.modalities.items():
        about[f"{modality} items"] = number(found.items)
        about[f"largest {modality}, tokens"] = number(found.tokens.max)
    return about


def _settings(shown: CalibrationDocument) -> dict[str, str]:
    return dict(_flat(shown.engine_config))


def _flat(settings: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, str]]:
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", str(value)


def _reserved(shown: CalibrationDocument) -> dict[str, str]:
    return {what: f"{value} [{label}]" for what, *_, value, label in words.rows(shown)}


def _checks(shown: CalibrationDocument) -> dict[str, str]:
    return {check.name: check.status for check in shown.checks}


def _subject(shown: Rehearsal) -> dict[str, str]:
    return {name: str(getattr(shown, name)) for name in _SUBJECT}


def _memory(shown: Rehearsal) -> dict[str, str]:
    return {row.what.strip(): row.size for row in memory_rows(shown.memory)}


def _budget(shown: Rehearsal) -> dict[str, str]:
    return dict(_flat(shown.budget.model_dump())) if shown.budget else {}
