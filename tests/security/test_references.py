"""A medium that names another: FFmpeg may open no host for it; what is said is of the medium."""

from __future__ import annotations

from pathlib import Path

from mmcalib.domain.items import Item, Skipped
from mmcalib.domain.shapes import VideoShape
from mmcalib.media.probe import probe
from tests.e2e.media import clip

ID3 = b"ID3\x03\x00\x00\x00\x00\x00\x0a" + bytes(10)
INDEX = b"# VobSub index file, v7 (do not modify this line!)\nsize: 720x576\nid: en, index: 0\n"


def test_an_index_whose_file_is_not_there_is_there_itself(tmp_path: Path) -> None:
    path = tmp_path / "a.idx"
    path.write_bytes(ID3 + INDEX + b"timestamp: 00:00:01:000, filepos: 000000000\n" * 9)
    seen = probe(Item(str(path)))
    assert isinstance(seen, Skipped)
    assert seen.reason == "a playlist that names media elsewhere"


def test_a_file_of_any_name_is_opened(tmp_path: Path) -> None:
    for name in ("a.mp4", "http:a.mp4", "file:b.mp4", "concat:a|b.mp4", "%03d.mp4", "pipe:0.mp4"):
        clip(tmp_path / name, 160, 120, 5)
        assert isinstance(probe(Item(str(tmp_path / name))), VideoShape), name
