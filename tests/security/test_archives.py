"""Archives that mean harm: the one who lists them is bounded in time and memory, as are members."""

from __future__ import annotations

import gzip
import os
import resource
import struct
import subprocess
import sys
import tarfile
import zipfile
import zlib
from collections.abc import Iterable
from pathlib import Path

import pytest

from mmcalib.corpus.webdataset import WebDatasetSource
from mmcalib.corpus.zip_archive import ZipSource
from mmcalib.domain.items import Item, Skipped
from mmcalib.domain.shapes import ImageShape
from mmcalib.media.probe import probe
from tests.corpus.tars import END, member, png, tar

LISTED = """
import resource, sys
from mmcalib.corpus.webdataset import WebDatasetSource
from mmcalib.corpus.zip_archive import ZipSource
path = sys.argv[1]
source = (ZipSource if path.endswith(".zip") else WebDatasetSource)(path)
found = [*source.prompts(), *source.items()]
print(getattr(found[-1], "reason", ""))
"""
MOST_S = 30
MOST_BYTES = 1 << 30


def listed(path: Path) -> str:
    """Why it was not read to its end, found in bounded memory and time."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_DATA, (MOST_BYTES, MOST_BYTES))

    done = subprocess.run(
        [sys.executable, "-c", LISTED, path],
        preexec_fn=limit,
        capture_output=True,
        text=True,
        timeout=MOST_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def header(kind: bytes, data: bytes, name: str = "x") -> bytes:
    info = member(name, len(data), kind)
    return info.tobuf(tarfile.GNU_FORMAT) + data + bytes(-len(data) % 512)


def record(key: str, value: str = "v") -> bytes:
    rest = f" {key}={value}\n"
    length = len(rest) + len(str(len(rest)))
    return f"{len(rest) + len(str(length))}{rest}".encode()


def fields(count: int, start: int = 0) -> bytes:
    return b"".join(record(f"k{number}") for number in range(start, start + count))


def sparse(blocks: int) -> bytes:
    """A file whose map of holes goes on for so many blocks."""
    first = bytearray(member("s", 0, tarfile.GNUTYPE_SPARSE).tobuf(tarfile.GNU_FORMAT))
    first[482], first[148:156] = 1, b" " * 8
    first[148:156] = b"%06o\0 " % sum(first)
    block = b"00000000001\0" * 42 + b"\1" + bytes(7)
    return bytes(first) + block * blocks


X, G, NAME = tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME
MIB = 1 << 20
NEW_SPARSE = b"".join(
    record(f"GNU.sparse.{key}", value)
    for key, value in (("major", "1"), ("minor", "0"), ("name", "x"))
)
TOO_MANY = "header of more than 1000 fields"
TOO_LONG = "header of more than 1 MiB"
AT_ONCE = "damaged at byte 1024: "
BOMBS = {
    "a number without end": (header(X, b"1" * (MIB // 2)), "a number of a hundred digits"),
    "fields without end": (header(X, fields(60_000)), TOO_MANY),
    "global fields, a few in each": (
        b"".join(header(G, fields(500, 500 * n)) + header(X, record("a")) for n in range(300)),
        AT_ONCE,
    ),
    "global fields, copied for each member": (
        b"".join(
            header(G, fields(500, 500 * n)) + header(tarfile.REGTYPE, b"", f"{n}")
            for n in range(2000)
        ),
        TOO_MANY,
    ),
    "headers of headers": (header(X, record("a", "a" * (MIB // 4))) * 400, TOO_LONG),
    "holes without end": (sparse(200_000), TOO_LONG),
    "a count of holes without end": (
        header(X, NEW_SPARSE) + header(tarfile.REGTYPE, b"5\n" + b"9" * (64 * MIB)),
        AT_ONCE,
    ),
    "names without end": (
        (header(NAME, b"n" * (MIB // 2)) + header(tarfile.REGTYPE, b"")) * 400,
        "name of more than 4096 characters",
    ),
}


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzipped"])
@pytest.mark.parametrize("name", BOMBS)
def test_headers_that_grow_in_memory_or_time_end_the_archive(
    name: str, packed: bool, tmp_path: Path
) -> None:
    data, why = BOMBS[name]
    path = tmp_path / ("a.tgz" if packed else "a.tar")
    whole = header(tarfile.REGTYPE, png(), "good.png") + data + END
    path.write_bytes(gzip.compress(whole, 1) if packed else whole)
    assert why in listed(path)
    first, *_ = WebDatasetSource(str(path)).items()
    assert isinstance(first, Item)


def test_the_text_of_a_sample_is_bounded_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    with path.open("wb") as file:
        file.write(header(tarfile.REGTYPE, png(), "a.png"))
        for number in range(900):
            file.write(member(f"a.{number}.txt", MIB).tobuf())
            file.seek(MIB, 1)
        file.write(END)
    assert listed(path) == ""
    (prompt,) = WebDatasetSource(str(path)).prompts()
    assert prompt == Skipped(f"{path}:a", "text of more than 1 MiB")


def test_a_hard_link_and_a_sparse_file_are_no_way_out(tmp_path: Path) -> None:
    link = member("a.png", kind=tarfile.LNKTYPE, link="/etc/passwd").tobuf()
    path = tmp_path / "a.tar"
    path.write_bytes(link + header(tarfile.REGTYPE, png(), "b.png") + END)
    found = [*WebDatasetSource(str(path)).items()]
    assert [isinstance(one, Skipped) for one in found] == [True, False]


# Zip: members are written by hand, because zipfile makes sound ones.
LOCAL = struct.Struct("<4s5H3L2H")
CENTRAL = struct.Struct("<4s6H3L5H2L")
END_OF_ZIP = struct.Struct("<4s4H2LH")


class Zip:
    """An archive in which each entry of the directory may say anything."""

    def __init__(self) -> None:
        self.data = b""
        self.directory = b""

    def local(self, name: bytes, packed: bytes, size: int, method: int = 8) -> int:
        """The place of a member that is laid down."""
        at = len(self.data)
        head = LOCAL.pack(b"PK\3\4", 20, 0, method, 0, 0, 0, len(packed), size, len(name), 0)
        self.data += head + name + packed
        return at

    def entry(
        self,
        name: bytes,
        at: int,
        packed_bytes: int,
        size: int,
        *,
        method: int = 8,
        extra: bytes = b"",
        flags: int = 0,
        crc: int = 0,
    ) -> None:
        self.directory += (
            CENTRAL.pack(
                *(b"PK\1\2", 20, 20, flags, method, 0, 0, crc, packed_bytes, size),
                *(len(name), len(extra), 0, 0, 0, 0, at),
            )
            + name
            + extra
        )

    def write(self, path: Path, entries: int = 0xFFFF) -> str:
        end = END_OF_ZIP.pack(
            *(b"PK\5\6", 0, 0, entries, entries, len(self.directory), len(self.data), 0)
        )
        path.write_bytes(self.data + self.directory + end)
        return str(path)


def deflated(data: bytes) -> bytes:
    packer = zlib.compressobj(9, wbits=-15)
    return packer.compress(data) + packer.flush()


def reasons(found: Iterable[Item | Skipped]) -> list[str]:
    """What keeps each from being measured; empty where nothing does."""
    seen = [one if isinstance(one, Skipped) else probe(one) for one in found]
    return [one.reason if isinstance(one, Skipped) else "" for one in seen]


@pytest.mark.parametrize("method", [0, 8])
def test_members_that_share_their_bytes_are_skipped(method: int, tmp_path: Path) -> None:
    """One kernel of data, counted by the thousand: ten kilobytes of directory for each gigabyte."""
    archive = Zip()
    packed = deflated(png()) if method else png()
    at = archive.local(b"a.png", packed, len(png()), method)
    for number in range(2000):
        name = b"a.png" if not number else b"%d.png" % number
        archive.entry(name, at, len(packed), len(png()), method=method, crc=zlib.crc32(png()))
    found = [*ZipSource(archive.write(tmp_path / "a.zip")).items()]
    assert len(found) == 2000
    overlapping = [one for one in found if isinstance(one, Skipped)]
    assert {one.reason for one in overlapping} == {"shares its bytes with another member"}
    assert len(overlapping) == 2000


def test_members_one_within_the_other_are_skipped(tmp_path: Path) -> None:
    """As zip bombs nest them: each holds the headers and data of all that follow."""
    archive = Zip()
    places = [(b"%d.png" % n, archive.local(b"%d.png" % n, b"", 0, 0)) for n in range(50)]
    end = archive.local(b"last.png", png(), len(png()), 0) + 30 + len(b"last.png") + len(png())
    for name, at in places:
        archive.entry(name, at, end - at - 30 - len(name), end - at - 30 - len(name), method=0)
    archive.entry(b"last.png", places[-1][1] + 30 + 6, len(png()), len(png()), method=0)
    found = [*ZipSource(archive.write(tmp_path / "a.zip")).items()]
    assert not any(isinstance(one, Item) for one in found)


def test_sound_members_beside_them_are_measured(tmp_path: Path) -> None:
    archive = Zip()
    one = archive.local(b"a.png", png(), len(png()), 0)
    two = archive.local(b"b.png", png(5, 6), len(png(5, 6)), 0)
    archive.entry(b"b.png", two, len(png(5, 6)), len(png(5, 6)), method=0)
    archive.entry(b"a.png", one, len(png()), len(png()), method=0)
    archive.entry(b"c.png", one, len(png()), len(png()), method=0)
    a, b, c = ZipSource(archive.write(tmp_path / "a.zip")).items()
    assert isinstance(a, Skipped)
    assert isinstance(c, Skipped)
    assert isinstance(b, Item)
    assert probe(b) == ImageShape(5, 6)


ZIP64 = struct.Struct("<HH3Q")
LIES: dict[str, dict[str, int]] = {
    "sizes of zip64": {"packed_bytes": 0xFFFFFFFF, "size": 0xFFFFFFFF, "at": 0xFFFFFFFF},
    "a place behind the end": {"at": 0x7FFFFFFF},
    "a place in the directory": {"at": 200},
    "encrypted": {"flags": 1},
    "a method that nobody knows": {"method": 99},
}


@pytest.mark.parametrize("method", [0, 8])
@pytest.mark.parametrize("lie", LIES)
def test_a_directory_that_lies_is_skipped(lie: str, method: int, tmp_path: Path) -> None:
    archive = Zip()
    packed = deflated(png()) if method else png()
    archive.local(b"a.png", packed, len(png()), method)
    told = {"at": 0, "packed_bytes": len(packed), "size": len(png()), "method": method}
    extra = ZIP64.pack(1, 24, 1 << 62, 1 << 62, (1 << 63) - 1) if "zip64" in lie else b""
    archive.entry(b"a.png", extra=extra, **told | LIES[lie])
    found = reasons(ZipSource(archive.write(tmp_path / "a.zip")).items())
    assert len(found) == 1
    assert found[0]


def test_a_name_that_the_member_does_not_have_is_skipped(tmp_path: Path) -> None:
    archive = Zip()
    packed = deflated(png())
    archive.entry(b"b.png", archive.local(b"a.png", packed, len(png())), len(packed), len(png()))
    (found,) = reasons(ZipSource(archive.write(tmp_path / "a.zip")).items())
    assert "differ" in found


NAMES = (
    *(
        b"../../up.png",
        b"/etc/a.png",
        b"a/../../b.png",
        b"nul\0.png",
        b"c:\\d.png",
        b"\\\\h\\e.png",
    ),
    *(b"\x1b[31m.png", b"new\nline.png", b" ", b"\xff\xfe.png", b"a" * 60_000 + b".png"),
)


@pytest.mark.parametrize("name", NAMES, ids=lambda name: repr(name)[:20])
def test_names_are_names(name: bytes, tmp_path: Path) -> None:
    archive = Zip()
    at = archive.local(name, png(), len(png()), 0)
    archive.entry(name, at, len(png()), len(png()), method=0)
    path = archive.write(tmp_path / "a.zip")
    before = _below(tmp_path.parent)
    (found,) = ZipSource(path).items()
    assert isinstance(found, Item)
    assert probe(found) == ImageShape(9, 8)
    assert _below(tmp_path.parent) == before


def _below(folder: Path) -> list[str]:
    """Everything, as deep as names may be long: other tests made folders deeper than that."""
    return sorted(
        str(Path(at, name)) for at, dirs, files in os.walk(folder) for name in files + dirs
    )


def test_a_directory_of_very_many_members(tmp_path: Path) -> None:
    archive = Zip()
    packed = b"".join(
        CENTRAL.pack(*(b"PK\1\2", 20, 20, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0)) + name
        for name in (b"%4x" % (number & 0xFFFF) for number in range(400_000))
    )
    archive.directory = packed
    path = Path(archive.write(tmp_path / "a.zip"))
    listed(path)


@pytest.mark.parametrize(
    ("date", "extra"), [(0, b""), (0xFFFF, b""), (0, b"\1\0\xff\xff"), (0, b"\1\0\0\0" * 50)]
)
def test_other_fields_may_be_anything(date: int, extra: bytes, tmp_path: Path) -> None:
    archive = Zip()
    at = archive.local(b"a.png", png(), len(png()), 0)
    archive.entry(b"a.png", at, len(png()), len(png()), method=0, extra=extra)
    archive.directory = (
        archive.directory[:12] + struct.pack("<2H", date, date) + (archive.directory[16:])
    )
    found = [*ZipSource(archive.write(tmp_path / "a.zip")).items()]
    assert len(found) == 1
    assert isinstance(found[0], Skipped) or probe(found[0]) == ImageShape(9, 8)


def test_a_tar_in_a_zip_is_not_opened(tmp_path: Path) -> None:
    tar(tmp_path / "in.tar", ("a.png", png()))
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as file:
        file.write(tmp_path / "in.tar", "in.tar")
        file.writestr("in.zip", b"PK\5\6" + bytes(18))
    assert (
        reasons(ZipSource(str(tmp_path / "a.zip")).items())
        == ["not an image, video or audio file"] * 2
    )
