"""New in the server conformance work: pictures that end too early, and are refused."""

from __future__ import annotations

import io

import pytest
from PIL import Image

from mmcalib.domain.items import ByteSource, Item
from mmcalib.domain.shapes import Encoded
from mmcalib.media.ending import cut_short, examine_whole


def picture(form: str) -> bytes:
    page = io.BytesIO()
    Image.effect_noise((300, 200), 90).convert("RGB").save(page, form)
    return page.getvalue()


def examined(data: bytes) -> bool:
    seen = examine_whole(Item("memory://a", held=ByteSource("", len(data), data=data)))
    assert isinstance(seen, Encoded), seen
    return seen.encoding.cut_short


@pytest.mark.parametrize("form", ["JPEG", "PNG"])
def test_a_picture_without_its_end_is_seen(form: str) -> None:
    whole = picture(form)
    assert not examined(whole)
    assert examined(whole[: len(whole) * 2 // 3])


def test_what_stands_behind_the_end_does_not_matter() -> None:
    assert not examined(picture("JPEG") + bytes(5000))


@pytest.mark.parametrize("form", ["BMP", "GIF", "TIFF"])
def test_of_other_formats_nothing_is_said(form: str) -> None:
    data = picture(form)[:-10]
    assert not cut_short(io.BytesIO(data), len(data))
