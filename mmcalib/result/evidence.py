"""Why a setting has its value."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from typing import Any

from mmcalib.domain.label import Label
from mmcalib.result.part import DocumentPart


class Evidence(DocumentPart):
    """Why a setting has its value, and the item or request that set it. `effect` is what switching
    it off changed.
    """

    setting: str
    value: Any
    label: Label
    reason: str
    exemplar: str = ""
    effect: str = ""


def grouped(evidence: Iterable[Evidence]) -> list[tuple[list[str], list[str], Evidence]]:
    """Neighbours with one reason said once: (settings, their values, the first of them)."""
    found = []
    for _, run in groupby(evidence, key=lambda e: (e.reason, e.label, e.exemplar)):
        entries = list(run)
        values = [str(entry.value) for entry in entries]
        found.append(([entry.setting for entry in entries], values, entries[0]))
    return found
