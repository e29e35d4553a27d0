from __future__ import annotations

from itertools import combinations

import pytest

from mmcalib.media.sniff import IMAGE_ENDINGS, SOUND_ENDINGS, VIDEO_ENDINGS, ending_of


def test_an_ending_is_of_one_modality() -> None:
    pairs = combinations((IMAGE_ENDINGS, VIDEO_ENDINGS, SOUND_ENDINGS), 2)
    assert [one & other for one, other in pairs] == [set()] * 3


@pytest.mark.parametrize(
    ("path", "ending"),
    [("/a.b/c.JPG", "jpg"), ("c.right.png", "png"), ("/a.b/c", ""), (".png", ""), ("", "")],
)
def test_what_follows_the_last_dot(path: str, ending: str) -> None:
    assert ending_of(path) == ending
