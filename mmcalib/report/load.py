"""What a calibration says of the load that it was made for."""

from __future__ import annotations

from collections.abc import Mapping

from mmcalib.derive.load_buckets import SizedItems
from mmcalib.domain.shapes import ImageShape, Modality, VideoShape
from mmcalib.result.calibration import CalibrationDocument


def sized_items(calibration: CalibrationDocument) -> list[SizedItems]:
    """Pictures and clips by their shapes, each as often as the corpus has it. Of those that are not
    listed one by one each cell of sizes stands for its share.
    """
    costs = calibration.costs.modalities if calibration.costs else {}
    found: list[SizedItems] = []
    for part in costs.values():
        found += [
            SizedItems(known.shape, max(1, known.items or 1), known.tokens)
            for known in part.known
            if isinstance(known.shape, ImageShape | VideoShape)
        ]
        if part.unlisted and part.unlisted.shapes:
            each = part.unlisted.items / part.unlisted.shapes
            found += [
                SizedItems(
                    ImageShape(cell.width_px, cell.height_px),
                    max(1, round(cell.shapes * each)),
                    cell.tokens,
                )
                for cell in part.unlisted.sizes
            ]
    return found


def limit(calibration: CalibrationDocument, modality: Modality) -> int:
    """How many a prompt may have; 0 where the file says no number."""
    given = calibration.limits.limit_mm_per_prompt.get(modality)
    count = given.get("count") if isinstance(given, dict) else given
    return count if isinstance(count, int) and count > 0 else 0


def items_per_request(calibration: CalibrationDocument, limits: Mapping[Modality, int]) -> int:
    """In the mean of the corpus, of these modalities; one where it has no requests, and no more
    than the limits admit.
    """
    corpus = calibration.corpus
    items = sum(corpus.modalities[m].items for m in limits if m in corpus.modalities)
    mean = round(items / corpus.prompts) if corpus.prompts else 1
    return max(1, min(mean, sum(limits.values())))
