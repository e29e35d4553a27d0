"""How many items a corpus has, and the tokens that they take."""

from __future__ import annotations

from mmcalib.domain.cost import Retention
from mmcalib.domain.label import Label
from mmcalib.result.part import DocumentPart


class Tokens(DocumentPart):
    """Prompt tokens per item; `exemplar` is the path of the heaviest."""

    min: int
    p50: int
    p90: int
    p99: int
    max: int
    exemplar: str
    label: Label = "measured"


class ModalityItems(DocumentPart):
    """`tokens` are those under vLLM's default, `kept` is what the calibrated settings leave of
    them. `witnesses`: so many stand-ins were processed, and vLLM's own count, which agreed with all
    of them, stands for the others; None where all were processed.
    """

    items: int
    unique_shapes: int
    tokens: Tokens
    heaviest: str
    witnesses: int | None = None
    kept: Retention | None = None


class Corpus(DocumentPart):
    """Item counts: with requests, every mention of an item counts."""

    items: int
    prompts: int
    skipped: int
    modalities: dict[str, ModalityItems]

    def losses(self) -> list[str]:
        """What calibrated settings take off items: a sentence for each modality they shrink."""
        parts = ((name, part.kept) for name, part in self.modalities.items())
        return [kept.describe(name) for name, kept in parts if kept and kept.items_smaller]
