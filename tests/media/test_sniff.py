from itertools import combinations

import pytest

from mmcalib.media.sniff import EXTENSIONS, HEAD_BYTES, extension_of, sniff


def page(data: bytes, *, begins: bool) -> bytes:
    return b"OggS\0" + bytes([2 * begins]) + bytes(20) + bytes([1, len(data)]) + data


VORBIS, OPUS = page(b"\x01vorbis" + bytes(23), begins=True), page(b"OpusHead", begins=True)
THEORA, MORE = page(b"\x80theora", begins=True), page(b"more", begins=False)


@pytest.mark.parametrize(
    ("head", "kind"),
    [
        (b"", "empty"),
        (b"\xff\xd8\xff\xe0", "image"),
        (b"RIFF\0\0\0\0WEBP", "image"),
        (b"RIFF\0\0\0\0AVI ", "container"),
        (b"RIFF\0\0\0\0WAVE", "audio"),
        (b"RIFF\0\0\0\0sfbk", "unknown"),
        (b"Creative Voice File\x1a\x1a\0", "audio"),
        (b"caff\0\1\0\0", "audio"),
        (b"\x06\x0e+4\2\5\1\1\r\1\2\1\1\2", "container"),
        (b"\0\0\0\x1cftypavif", "image"),
        (b"\0\0\0\x18ftypisom", "container"),
        (b"\0\0\0\x18ftypM4A ", "container"),
        (VORBIS + MORE, "audio"),
        (OPUS + MORE, "audio"),
        (THEORA + MORE, "container"),
        (VORBIS + THEORA + MORE, "container"),
        (VORBIS, "container"),
        (b"OggS", "container"),
        (b"P6\n2 2\n255\n", "image"),
        (b"P6 is a name of a road", "image"),
        (b"\x47" + b"\0" * 187 + b"\x47" + b"\0" * 187 + b"\x47", "container"),
        (b"\xff\xfb\x90\0", "audio"),
        (b"BMW, a maker of cars", "text"),
        (b"The free beer", "text"),
        (b"Good morning", "text"),
        (b"\xff\xfet\0e\0x\0t\0", "text"),
        ("naïve".encode(), "text"),
        (b'{"messages": []}\n', "text"),
        (b"#!/bin/sh\n\x1b[0m", "text"),
        (b"\x7fELF\2\1\1\0", "unknown"),
        (b"\x93NUMPY\1\0", "unknown"),
        (b"PK\3\4", "unknown"),
    ],
)
def test_content_decides(head: bytes, kind: str) -> None:
    assert sniff(head) == kind


def test_text_cut_inside_a_character_is_text() -> None:
    text = ("x" + "é" * HEAD_BYTES).encode()
    assert sniff(text[:HEAD_BYTES]) == "text"


@pytest.mark.parametrize("length", range(1, 16))
def test_any_short_head_has_a_kind(length: int) -> None:
    for byte in range(256):
        assert sniff(bytes([byte]) * length) in ("unknown", "text", "audio", "container")


def test_an_ending_is_of_one_modality() -> None:
    pairs = combinations(map(set, EXTENSIONS.values()), 2)
    assert [one & other for one, other in pairs] == [set()] * 3


@pytest.mark.parametrize(
    ("path", "ending"),
    [("/a.b/c.JPG", "jpg"), ("c.right.png", "png"), ("/a.b/c", ""), (".png", ""), ("", "")],
)
def test_what_follows_the_last_dot(path: str, ending: str) -> None:
    assert extension_of(path) == ending
