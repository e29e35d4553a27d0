"""Zip archives: members read in place, and none that can do harm."""

from __future__ import annotations

import stat
import time
import zipfile
import zlib
from pathlib import Path

import pytest

from mmcalib.census.count_corpus import count_corpus
from mmcalib.corpus.zip_archive import ZipSource
from mmcalib.domain.items import Item, Skipped
from mmcalib.domain.shapes import AudioShape, ImageShape
from mmcalib.locations.opening import local_copy
from mmcalib.media.decode import decode_check
from mmcalib.media.probe import probe
from tests.census.looking import prober
from tests.corpus.listed import held, items_of, reason, width
from tests.corpus.media import png, wav

MIB = 1 << 20


def archive(folder: Path, **members: bytes) -> str:
    path = folder / "a.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, data in members.items():
            file.writestr(name, data)
    return str(path)


def only(path: str) -> Item | Skipped:
    (found,) = ZipSource(path).items()
    return found


def names(source: ZipSource) -> list[str]:
    return [found.path.partition("::")[0].removeprefix("zip://") for found in source.items()]


def damaged(path: str, old: bytes, new: bytes) -> str:
    data = Path(path).read_bytes()
    assert old in data
    Path(path).write_bytes(data.replace(old, new))
    return path


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_members_are_items_by_name(tmp_path: Path, method: int) -> None:
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w", method) as file:
        file.writestr("b/sound.wav", wav(8000))
        file.writestr("a.png", png(40, 24))
        file.mkdir("b/c")
        file.writestr("__MACOSX/._a.png", b"clutter")
    found = items_of(ZipSource(str(path)))
    assert [item.path for item in found] == [
        f"zip://a.png::{path}",
        f"zip://b/sound.wav::{path}",
    ]
    assert [probe(item) for item in found] == [ImageShape(40, 24), AudioShape(8000, 16000)]
    assert decode_check(found[1], "audio") is None
    assert Path(local_copy(found[0].path, tmp_path / "copies")).read_bytes() == png(40, 24)


def test_any_name_finds_its_member(tmp_path: Path) -> None:
    odd = {name: png(n + 1, 5) for n, name in enumerate(["a::b", "50%.png", "/abs", "../up", "\n"])}
    found = items_of(ZipSource(archive(tmp_path, **odd)))
    assert sorted(width(item) for item in found) == [1, 2, 3, 4, 5]


def test_a_pattern_chooses_members(tmp_path: Path) -> None:
    path = archive(tmp_path, **{"a.jpg": b"", "b/c.jpg": b"", "d.png": b""})
    assert names(ZipSource(path, pattern="*.jpg")) == ["a.jpg"]
    assert names(ZipSource(path, pattern="**/*.jpg")) == ["a.jpg", "b/c.jpg"]


def test_a_damaged_member_is_skipped_and_the_others_are_not(tmp_path: Path) -> None:
    path = archive(tmp_path, **{"a.png": png(99, 99), "b.png": png(40, 24)})
    with zipfile.ZipFile(path) as file:
        start = file.getinfo("a.png").header_offset + 30 + len("a.png")
    data = bytearray(Path(path).read_bytes())
    data[start : start + 20] = b"\xff" * 20
    Path(path).write_bytes(data)
    taken = count_corpus([ZipSource(path)], prober())
    assert [entry.shape for entry in taken.census.shapes()] == [ImageShape(40, 24)]
    assert len(taken.skipped) == 1
    assert taken.skipped[0].reason.startswith("damaged: ")


def test_encrypted_members_are_skipped(tmp_path: Path) -> None:
    path = archive(tmp_path, **{"a.png": png(40, 24)})
    data = bytearray(Path(path).read_bytes())
    for header, flags in ((b"PK\3\4", 6), (b"PK\1\2", 8)):
        data[data.index(header) + flags] |= 1
    Path(path).write_bytes(data)
    assert only(path) == Skipped(f"zip://a.png::{path}", "encrypted")


def test_methods_that_make_gigabytes_of_a_few_bytes_are_skipped(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_BZIP2) as file:
        file.writestr("a.png", png(40, 24))
    assert reason(only(str(path))) == "compression method 12 of zip"


def test_links_in_an_archive_are_skipped(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    link = zipfile.ZipInfo("a.png")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(path, "w") as file:
        file.writestr(link, "/etc/passwd")
    assert reason(only(str(path))) == "not a regular file"


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
    path = archive(tmp_path, **{"a.png": png(1, 1)})
    assert list(ZipSource(path, pattern="*.gif").items()) == []


def test_a_directory_that_leads_nowhere_is_skipped(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("a.png", png(40, 24))
    (item,) = items_of(ZipSource(damaged(str(path), b"PK\3\4", b"XX\3\4")))
    assert reason(probe(item)) == "damaged: the archive's directory leads nowhere"


def test_an_archive_that_went_away_is_skipped(tmp_path: Path) -> None:
    path = archive(tmp_path, **{"a.png": png(40, 24)})
    (item,) = items_of(ZipSource(path))
    Path(path).unlink()
    assert reason(probe(item)) == reason(only(path)) == "no such file"


def bomb(path: Path, name: str, head: bytes, size_bytes: int) -> str:
    """A zip of four megabytes with one member of `head` and zeros."""
    deflate = zlib.compressobj(9, wbits=-15)
    start = deflate.compress(head) + deflate.flush(zlib.Z_FULL_FLUSH)
    block = deflate.compress(bytes(MIB)) + deflate.flush(zlib.Z_FULL_FLUSH)
    data = start + block * (size_bytes // MIB) + b"\x03\0"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr(name, data)
    written = bytearray(path.read_bytes())
    for header, method, size in ((b"PK\3\4", 8, 22), (b"PK\1\2", 10, 24)):
        at = written.index(header)
        written[at + method] = zipfile.ZIP_DEFLATED
        written[at + size : at + size + 4] = (len(head) + size_bytes).to_bytes(4, "little")
    path.write_bytes(written)
    return str(path)


@pytest.mark.parametrize(
    ("name", "head"),
    [
        (
            "a.mp4",
            b"\0\0\0\x18ftypisom\0\0\0\0isommp42" + (4000 * MIB).to_bytes(4, "big") + b"mdat",
        ),
        ("a.webp", b"RIFF\xff\xff\xff\xffWEBPVP8 "),
        ("a.ts", (b"G\x1f\xff\x10" + bytes(184)) * 9),
    ],
)
def test_a_zip_bomb_is_not_inflated(tmp_path: Path, name: str, head: bytes) -> None:
    (item,) = items_of(ZipSource(bomb(tmp_path / "a.zip", name, head, 4090 * MIB)))
    assert held(item).size_bytes > 4000 * MIB
    started = time.process_time()
    assert isinstance(probe(item), Skipped)
    assert time.process_time() - started < 6


def test_the_directory_is_read_once_for_many_members(tmp_path: Path) -> None:
    path = archive(tmp_path, **{f"{n}.png": png(4, 4) for n in range(5000)})
    started = time.process_time()
    shapes = [probe(item) for item in items_of(ZipSource(path))]
    assert shapes == [ImageShape(4, 4)] * 5000
    # To read it takes some 20 ms, and would be done five thousand times.
    assert time.process_time() - started < 10
