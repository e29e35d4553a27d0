"""A look at bytes that came with the item; workers import it from here."""

from __future__ import annotations

from mmcalib.domain.items import Item
from mmcalib.domain.shapes import ImageShape


def held_bytes(item: Item) -> ImageShape:
    assert item.held is not None
    assert item.held.data is not None
    return ImageShape(len(item.held.data), 1)
