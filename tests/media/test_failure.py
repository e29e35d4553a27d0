"""Which errors count as damage of a file, and which are bugs."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from PIL import Image, ImageFile

from mmcalib.domain.items import Item
from mmcalib.media.container import open_container
from mmcalib.media.failure import Unreadable, media_errors, reading_by_pillow
from mmcalib.media.probe import probe
from tests.media import hostile as make
from tests.odd_media import titled


def test_what_pillow_raises_on_bytes_is_damage() -> None:
    with pytest.raises(Unreadable, match="damaged: TypeError"), reading_by_pillow():
        ImageFile.Parser().feed("no bytes")  # type: ignore[arg-type]


def test_a_wrong_call_of_ours_is_a_bug() -> None:
    with pytest.raises(TypeError, match="no_such"), reading_by_pillow():
        Image.open(io.BytesIO(), no_such=True)  # type: ignore[call-arg]


def test_no_bug_counts_as_damage() -> None:
    assert not {TypeError, AttributeError, ImportError, NameError} & set(media_errors())


def test_metadata_that_is_no_utf_8_is_no_damage(tmp_path: Path) -> None:
    path = tmp_path / "named.mp4"
    make.video(path, (64, 48))
    marked = titled(path, tmp_path / "marked.mkv", b"\xff\xfe\xe9TLE-TITLE")
    with open_container(str(marked)) as container:
        assert "TLE" in container.metadata["title"]
    assert probe(Item(str(marked))) == probe(Item(str(path)))
