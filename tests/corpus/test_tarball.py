from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from mmcalib.locations.tarball import Damaged, Tar
from tests.corpus.tars import png, tar


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_members_are_those_that_tarfile_finds(tmp_path: Path, form: int) -> None:
    names = ["a.png", "./b.png", "/c.png", "d" * 90 + "/" + "e" * 90, "f" * 99, "g h.png", "i/"]
    names += [] if form == tarfile.USTAR_FORMAT else ["j" * 200, "ü" * 120]
    path = tar(tmp_path / "a.tar", *((name, name.encode() * 9) for name in names), format=form)
    with tarfile.open(path) as theirs, Tar(str(path)) as ours:
        assert [(m.name, m.size, m.offset_data, m.isreg()) for m in ours.members()] == [
            (m.name, m.size, m.offset_data, m.isreg()) for m in theirs
        ]


@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_a_member_is_read_as_it_passes_by(tmp_path: Path, mode: str) -> None:
    path = tar(tmp_path / "a.tar", ("a", b"0123456789"), ("b", png()), ("c", b"xyz"), mode=mode)
    with Tar(str(path)) as archive:
        assert [archive.read(member, 4) for member in archive.members()] == [
            b"0123",
            png()[:4],
            b"xyz",
        ]


def test_a_header_that_is_changed_is_found_out(tmp_path: Path) -> None:
    path = tar(tmp_path / "a.tar", ("a.png", b"x"))
    data = path.read_bytes()
    for place in (0, 99, 124, 130, 148, 156, 345, 511):
        path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        with Tar(str(path)) as archive, pytest.raises(Damaged, match="not a tar archive"):
            list(archive.members())


def test_a_version_changes_with_the_archive(tmp_path: Path) -> None:
    path = tar(tmp_path / "a.tar", ("a.png", b"x"))
    with Tar(str(path)) as first, Tar(str(path)) as second:
        assert first.version == second.version
    tar(path, *((f"{n}", b"x") for n in range(99)))
    with Tar(str(path)) as third:
        assert third.version != first.version
