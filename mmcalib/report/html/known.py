"""What is known of the corpus' items, shape by shape, whatever wrote the calibration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mmcalib.domain.shapes import AudioShape, Shape
from mmcalib.results.calibration import CalibrationDocument
from mmcalib.results.costs import Unlisted


@dataclass(frozen=True, slots=True)
class Costed:
    """A shape, its tokens, and how many `items` have it, None if that was not kept; `exemplar` is
    the path of one, empty if none was.
    """

    shape: Shape
    tokens: int
    items: int | None
    exemplar: str = ""


def costed(calibration: CalibrationDocument, modality: str) -> list[Costed]:
    """The shapes of the corpus that are listed, with their tokens under the calibrated setting."""
    if calibration.costs is None or modality not in calibration.costs.modalities:
        return []
    found = calibration.corpus.modalities.get(modality)
    named, exemplar = (found.heaviest, found.tokens.exemplar) if found else ("", "")
    known = calibration.costs.modalities[modality].known
    most = max((one.tokens for one in known), default=0)
    # Writing a shape out is slow, and there may be a million.
    return [
        Costed(
            one.shape,
            one.tokens,
            one.items,
            one.exemplar or (exemplar if one.tokens == most and str(one.shape) == named else ""),
        )
        for one in known
    ]


def unlisted(calibration: CalibrationDocument, modality: str) -> Unlisted | None:
    """The others, of which only how many there are is kept."""
    costs = calibration.costs
    found = costs.modalities.get(modality) if costs else None
    return found.unlisted if found else None


def hinted(calibration: CalibrationDocument, modality: str) -> Mapping[str, int]:
    """The size hints that the configuration gives vLLM for this modality, by vLLM's names."""
    limit = calibration.limits.limit_mm_per_prompt.get(modality)
    if not isinstance(limit, Mapping):
        return {}
    hints = {name: value for name, value in limit.items() if name != "count"}
    return {n: value for n, value in hints.items() if isinstance(value, int) and value > 0}


def hint_tokens(calibration: CalibrationDocument, modality: str) -> int | None:
    """What the hinted size costs, if the corpus has items of it."""
    hints = hinted(calibration, modality)
    if not {"width", "height"} <= hints.keys():
        return None
    wanted = (hints["width"], hints["height"])
    return max(
        (k.tokens for k in costed(calibration, modality) if size_px(k.shape) == wanted),
        default=None,
    )


def size_px(shape: Shape) -> tuple[int, int] | None:
    """Width and height of a picture; None for sound."""
    return None if isinstance(shape, AudioShape) else (shape.width_px, shape.height_px)
