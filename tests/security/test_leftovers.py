"""What a process has below TMPDIR is its user's alone, and ends with it."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mmcalib.errors import OutputError
from mmcalib.files import Scratch
from mmcalib.storage.location import keep

HOLDER = """
import sys
from mmcalib.files import Scratch
scratch = Scratch()
(scratch.path / "file").write_text("x")
(scratch.path / "link").symlink_to(sys.argv[1])
print(scratch.path, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch) -> Path:
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr("tempfile.tempdir", None)
    return folder


@pytest.fixture
def holder(temporary: Path, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process with a folder, in which a link leads elsewhere."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "mine").write_text("mine")
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, tmp_path / "elsewhere"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert Path(process.stdout.readline().strip()).parent == temporary
    yield process
    process.kill()
    process.communicate()


def test_an_end_leaves_nothing(
    holder: subprocess.Popen[str], temporary: Path, tmp_path: Path
) -> None:
    (folder,) = temporary.iterdir()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    holder.communicate(timeout=20)
    assert os.listdir(temporary) == []
    assert (tmp_path / "elsewhere" / "mine").read_text() == "mine"


def test_nowhere_to_write_is_one_error(temporary: Path, monkeypatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(temporary / "gone"))
    with pytest.raises(OutputError) as caught:
        Scratch()
    assert caught.value.hint.startswith("export TMPDIR=")


def test_copies_of_inline_media_are_their_owners_alone(tmp_path: Path) -> None:
    import io

    folder = tmp_path / "cache" / "inline"
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    path = keep(io.BytesIO(b"x"), folder / "a.png", 1)
    assert stat.S_IMODE(os.stat(folder).st_mode) == 0o700
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    keep(io.BytesIO(b"x"), tmp_path / "new" / "inline" / "a.png", 1)
    assert stat.S_IMODE(os.stat(tmp_path / "new" / "inline").st_mode) == 0o700
