import json
import os
from pathlib import Path

import pytest

from mmcalib.domain.items import Skipped
from mmcalib.errors import OutputError
from mmcalib.files import write_text, write_texts
from mmcalib.results.calibration import skipped_jsonl


def test_it_writes_makes_folders_and_replaces(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "x.txt"
    write_text(path, "one × two\n")
    write_text(path, "three\n")
    assert path.read_bytes() == b"three\n"
    assert os.listdir(path.parent) == ["x.txt"]


def test_names_that_are_not_utf8_keep_their_bytes(tmp_path: Path) -> None:
    write_text(tmp_path / "x", os.fsdecode(b"latin-\xe9"))
    assert (tmp_path / "x").read_bytes() == b"latin-\xe9"


def test_a_folder_in_its_place_is_an_error_that_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "x.txt").mkdir()
    with pytest.raises(OutputError, match="cannot write") as caught:
        write_text(tmp_path / "x.txt", "new")
    assert caught.value.hint
    assert os.listdir(tmp_path) == ["x.txt"]


@pytest.mark.usefixtures("ordinary_user")
def test_a_read_only_folder_is_an_error_and_keeps_the_old(tmp_path: Path) -> None:
    write_text(tmp_path / "x.txt", "old")
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(OutputError, match="Permission denied"):
            write_text(tmp_path / "x.txt", "new")
        assert (tmp_path / "x.txt").read_text() == "old"
    finally:
        tmp_path.chmod(0o700)


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600)])
def test_the_umask_decides_who_may_read_it(umask: int, mode: int, tmp_path: Path) -> None:
    before = os.umask(umask)
    try:
        write_text(tmp_path / "x.txt", "x")
        assert os.umask(umask) == umask
    finally:
        os.umask(before)
    assert (tmp_path / "x.txt").stat().st_mode & 0o777 == mode


def test_files_that_belong_together_are_replaced_together(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    write_texts({one: "old", two: "old"})
    with pytest.raises(OutputError, match="cannot write"):
        write_texts({one: "new", two: "new \ud800"})
    assert (one.read_text(), two.read_text()) == ("old", "old")
    assert sorted(os.listdir(tmp_path)) == ["one", "two"]


def test_skipped_is_a_line_each(tmp_path: Path) -> None:
    path = tmp_path / "skipped.jsonl"
    skipped = [Skipped("/a\n\u2028b.jpg", "truncated"), Skipped(os.fsdecode(b"/\xe9"), "é")]
    write_text(path, skipped_jsonl(skipped))
    lines = [json.loads(line) for line in path.read_bytes().splitlines()]
    assert [Skipped(**line) for line in lines] == skipped
