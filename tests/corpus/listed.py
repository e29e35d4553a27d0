"""The items and prompts of a source that skips nothing."""

from mmcalib.corpus.chat import Prompt, Source
from mmcalib.domain.items import Item, Skipped
from mmcalib.domain.shapes import ImageShape
from mmcalib.media.probe import probe
from tests.builders import expect


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


def width(item: Item) -> int:
    return width_of(probe(item))


def width_of(shape: object) -> int:
    return expect(ImageShape, shape).width_px


def reason(found: object) -> str:
    return expect(Skipped, found).reason
