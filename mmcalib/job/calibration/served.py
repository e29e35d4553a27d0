"""The corpus as far as the opened model will serve it."""

from __future__ import annotations

from mmcalib.derive.policy import Policy
from mmcalib.domain.model import ModelInfo
from mmcalib.errors import CorpusError
from mmcalib.job.read import ReadCorpus


def served(
    corpus: ReadCorpus, opened: ModelInfo, policy: Policy
) -> tuple[ReadCorpus, dict[str, str]]:
    """The corpus without modalities that will not be served, and why each of those is left out."""
    left_out = {
        str(m): "the model does not take them" if m not in opened.modalities else "--count says 0"
        for m in corpus.census.modalities()
        if m not in opened.modalities or policy.count.get(m) == 0
    }
    if not left_out:
        return corpus, {}
    kept = corpus.only([m for m in corpus.census.modalities() if m not in left_out])
    if not kept.census.items():
        takes = ", ".join(opened.modalities)
        only = ", ".join(f"{m} items ({why})" for m, why in left_out.items())
        raise CorpusError(
            f"nothing to measure: the corpus holds only {only}; the model takes {takes}",
            hint="--model one that takes them, or --data with other media",
        )
    reasons = {m: f"{corpus.census.items(m)} {m} items: {why}" for m, why in left_out.items()}  # type: ignore[arg-type]
    return kept, reasons
