"""Zip archives: members read in place."""

from __future__ import annotations

import time
import zipfile
from pathlib import Path

import pytest

from mmcalib.census.counter import count_corpus
from mmcalib.corpus.archives import ArchiveSource
from mmcalib.domain.items import Item, Skipped
from mmcalib.domain.shapes import AudioShape, ImageShape
from mmcalib.media.decode import decode_check
from mmcalib.media.probe import probe
from mmcalib.storage.location import local_copy
from tests.census.looking import prober
from tests.corpus.listed import items_of, reason, width
from tests.corpus.media import png, wav


def archive(folder: Path, **members: bytes) -> str:
    path = folder / "a.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, data in members.items():
            file.writestr(name, data)
    return str(path)


def only(path: str) -> Item | Skipped:
    (found,) = ArchiveSource("zip", path).items()
    return found


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_members_are_items_by_name(tmp_path: Path, method: int) -> None:
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w", method) as file:
        file.writestr("b/sound.wav", wav(8000))
        file.writestr("a.png", png(40, 24))
        file.mkdir("b/c")
        file.writestr("__MACOSX/._a.png", b"clutter")
    found = items_of(ArchiveSource("zip", str(path)))
    assert [item.path for item in found] == [
        f"zip://a.png::{path}",
        f"zip://b/sound.wav::{path}",
    ]
    assert [probe(item) for item in found] == [ImageShape(40, 24), AudioShape(8000, 16000)]
    assert decode_check(found[1], "audio") is None
    assert Path(local_copy(found[0].path, tmp_path / "copies")).read_bytes() == png(40, 24)


def test_any_name_finds_its_member(tmp_path: Path) -> None:
    odd = {name: png(n + 1, 5) for n, name in enumerate(["a::b", "50%.png", "/abs", "../up", "\n"])}
    found = items_of(ArchiveSource("zip", archive(tmp_path, **odd)))
    assert sorted(width(item) for item in found) == [1, 2, 3, 4, 5]


def test_a_damaged_member_is_skipped_and_the_others_are_not(tmp_path: Path) -> None:
    path = archive(tmp_path, **{"a.png": png(99, 99), "b.png": png(40, 24)})
    with zipfile.ZipFile(path) as file:
        start = file.getinfo("a.png").header_offset + 30 + len("a.png")
    data = bytearray(Path(path).read_bytes())
    data[start : start + 20] = b"\xff" * 20
    Path(path).write_bytes(data)
    taken = count_corpus([ArchiveSource("zip", path)], prober())
    assert [entry.shape for entry in taken.census.shapes()] == [ImageShape(40, 24)]
    assert len(taken.skipped) == 1
    assert taken.skipped[0].reason.startswith("damaged: ")


def test_encrypted_members_are_skipped(tmp_path: Path) -> None:
    path = archive(tmp_path, **{"a.png": png(40, 24)})
    data = bytearray(Path(path).read_bytes())
    for header, flags in ((b"PK\3\4", 6), (b"PK\1\2", 8)):
        data[data.index(header) + flags] |= 1
    Path(path).write_bytes(data)
    assert "encrypted" in reason(probe(Item(f"zip://a.png::{path}")))


@pytest.mark.parametrize("share", [0.0, 0.4, 0.99])
def test_an_archive_without_its_end_is_skipped(tmp_path: Path, share: float) -> None:
    path = Path(archive(tmp_path, **{"a.png": png(400, 240)}))
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])
    found = only(str(path))
    assert isinstance(found, Skipped)
    assert found.path == str(path)


def test_an_archive_without_files_is_skipped(tmp_path: Path) -> None:
    path = archive(tmp_path)
    assert only(path) == Skipped(path, "archive without files")


def test_an_archive_that_went_away_is_skipped(tmp_path: Path) -> None:
    path = archive(tmp_path, **{"a.png": png(40, 24)})
    (item,) = items_of(ArchiveSource("zip", path))
    Path(path).unlink()
    assert reason(probe(item)) == reason(only(path)) == "no such file"


def test_the_directory_is_read_once_for_many_members(tmp_path: Path) -> None:
    path = archive(tmp_path, **{f"{n}.png": png(4, 4) for n in range(5000)})
    started = time.process_time()
    shapes = [probe(item) for item in items_of(ArchiveSource("zip", path))]
    assert shapes == [ImageShape(4, 4)] * 5000
    # To read it takes some 20 ms, and would be done five thousand times.
    assert time.process_time() - started < 10
