"""The largest items of a corpus, and their pictures."""

from __future__ import annotations

import heapq
import os
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mmcalib.census.executor import FunctionRef, ProbeTask
from mmcalib.census.pool import LocalPool
from mmcalib.domain.items import Item
from mmcalib.domain.shapes import AudioShape, Shape
from mmcalib.files import is_within
from mmcalib.limits.values import size_hint
from mmcalib.report.html.redact import WITHHELD
from mmcalib.results.calibration import CalibrationDocument
from mmcalib.results.costs import KnownCost
from mmcalib.storage.location import Location, is_local, member_name


def known_costs(calibration: CalibrationDocument, modality: str) -> list[KnownCost]:
    """Return the listed costs of the corpus' shapes."""
    found = calibration.costs.modalities.get(modality)
    return found.known if found else []


def hint_tokens(calibration: CalibrationDocument, modality: str) -> int | None:
    """Return the tokens of the hinted size; None if no item of the corpus has it."""
    hints = size_hint(calibration.limits, modality)
    if not {"width", "height"} <= hints.keys():
        return None
    wanted = (hints["width"], hints["height"])
    known = known_costs(calibration, modality)
    return max((k.tokens for k in known if size_px(k.shape) == wanted), default=None)


def size_px(shape: Shape) -> tuple[int, int] | None:
    """Width and height of a picture; None for sound."""
    return None if isinstance(shape, AudioShape) else (shape.width_px, shape.height_px)


def is_below(exemplar: str, roots: Collection[Path]) -> bool:
    """Return whether the item's file or archive, links resolved, is in a root or is one."""
    try:
        file = os.path.realpath(Location.of(exemplar).archive or exemplar)
        folders = map(os.path.realpath, roots)
        return any(is_within(file, folder) for folder in folders)
    except (OSError, ValueError):
        # Not a valid file name.
        return False


# Items on the page.
_MOST = 12


@dataclass(frozen=True, slots=True)
class CostlyItem:
    """One of the largest items. `picture` is a data URI; without it the page draws an outline of
    `width` × `height`, 100 at most. `outside`: its file is in no folder that the page may show.
    """

    name: str
    modality: str
    shape: str
    tokens: int
    picture: str | None
    width: float
    height: float
    outside: bool = False


def costliest_items(
    calibration: CalibrationDocument,
    *,
    thumbnails: bool,
    names: Mapping[str, str] | None,
    roots: Collection[Path] | None = None,
) -> list[CostlyItem]:
    """Return the costliest shapes first. `thumbnails` reads their files, limited to `roots` if
    given; `names` replaces file names.
    """
    found = [one for m in calibration.corpus.modalities for one in known_costs(calibration, m)]
    most = heapq.nlargest(_MOST, found, key=lambda one: one.tokens)
    items = [Item(one.exemplar, one.shape.modality) for one in most if thumbnails and one.exemplar]
    outside = {item for item in items if roots is not None and not is_below(item.path, roots)}
    drawn = pictures([item for item in items if item not in outside])
    return [_item(one, drawn, outside, names) for one in most]


def _item(
    one: KnownCost,
    drawn: Mapping[Item, str],
    outside: Collection[Item],
    names: Mapping[str, str] | None,
) -> CostlyItem:
    item, shape = Item(one.exemplar, one.shape.modality), one.shape
    # The longer side is 100; audio is a flat outline.
    width, height = 100.0, 30.0
    if sides := size_px(shape):
        width, height = (round(max(4.0, 100 * side / max(sides)), 1) for side in sides)
    drawable = item.declared in ("image", "video") and is_local(item.path)
    return CostlyItem(
        name=_name_in_page(one.exemplar, names),
        modality=shape.modality,
        shape=str(shape),
        tokens=one.tokens,
        picture=drawn.get(item),
        width=width,
        height=height,
        outside=item in outside and drawable,
    )


def _name_in_page(path: str, names: Mapping[str, str] | None) -> str:
    """Return the base name of a file, or its name in `names`."""
    if names is not None:
        return names.get(path, WITHHELD) if path else ""
    location = Location.of(path)
    name = os.path.basename(member_name(location.member or path)) or path
    return f"{name} in {os.path.basename(location.archive)}" if location.archive else name


# Seconds for one picture, and for all of them.
_PATIENCE_S = 10.0

# Of each worker, one per core. A JPEG decodes at an eighth of its size; other pictures, and
# progressive JPEGs, get none above some sixty million pixels.
_MEMORY_BYTES = 384 << 20

_THUMBNAIL = FunctionRef("mmcalib.report.html.thumbnail", "thumbnail")
_PICTURE = "data:image/jpeg;"


def pictures(items: Sequence[Item]) -> dict[Item, str]:
    """Return data URIs of the items that are files on this machine; nothing is downloaded."""
    drawn = [
        item
        for item in dict.fromkeys(items)
        if item.declared in ("image", "video")
        and os.path.isfile(Location.of(item.path).archive or item.path)
    ]
    found: dict[Item, str] = {}
    if not drawn:
        return found
    until_s = time.monotonic() + _PATIENCE_S
    workers = min(len(drawn), len(os.sched_getaffinity(0)))
    with LocalPool(
        _THUMBNAIL, workers=workers, timeout_s=_PATIENCE_S, memory_bytes=_MEMORY_BYTES
    ) as pool:
        waits = [pool.submit([ProbeTask(item)]) for item in drawn]
        for item, wait in zip(drawn, waits, strict=True):
            if time.monotonic() > until_s:
                break
            (answer,) = wait()
            if answer.line.startswith(_PICTURE):
                found[item] = answer.line
    return found
