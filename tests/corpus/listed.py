"""The items and prompts of a source that skips nothing."""

from mmcalib.corpus.chat import Prompt, Source
from mmcalib.domain.items import ByteSource, Item, Skipped
from mmcalib.domain.shapes import ImageShape
from mmcalib.media.probe import probe


def items_of(source: Source) -> list[Item]:
    found = list(source.items())
    items = [one for one in found if isinstance(one, Item)]
    assert items == found
    return items


def prompts_of(source: Source) -> list[Prompt]:
    found = list(source.prompts())
    prompts = [one for one in found if isinstance(one, Prompt)]
    assert prompts == found
    return prompts


def held(item: Item) -> ByteSource:
    """The source's knowledge of the item's bytes."""
    assert item.byte_source is not None
    return item.byte_source


def width(item: Item) -> int:
    return width_of(probe(item))


def width_of(shape: object) -> int:
    assert isinstance(shape, ImageShape), shape
    return shape.width_px


def reason(found: object) -> str:
    assert isinstance(found, Skipped), found
    return found.reason
