"""What a killed process leaves below TMPDIR goes with the next one, and nothing else does."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from mmcalib.errors import OutputError
from mmcalib.locations.atomic_copy import keep
from mmcalib.scratch import Scratch
from tests.docs.refresh import EXAMPLE

NAME = "mmcalib-scratch-abcd_123"
HOLDER = """
import sys
from mmcalib.scratch import Scratch
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


def test_what_the_dead_have_left_goes_and_the_living_keep_theirs(
    holder: subprocess.Popen[str], temporary: Path, tmp_path: Path
) -> None:
    with Scratch() as mine:
        assert len(os.listdir(temporary)) == 2
        with Scratch() as other:
            assert len(os.listdir(temporary)) == 3
            assert mine.path != other.path
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        assert len(os.listdir(temporary)) == 2
        with Scratch():
            assert len(os.listdir(temporary)) == 2
            assert mine.path.is_dir()
    assert os.listdir(temporary) == []
    assert (tmp_path / "elsewhere" / "mine").read_text() == "mine"


def test_a_stopped_process_is_not_dead(holder: subprocess.Popen[str], temporary: Path) -> None:
    holder.send_signal(signal.SIGSTOP)
    with Scratch():
        assert len(os.listdir(temporary)) == 2


def test_an_ordinary_end_leaves_nothing(holder: subprocess.Popen[str], temporary: Path) -> None:
    holder.communicate(timeout=20)
    assert os.listdir(temporary) == []


@pytest.mark.parametrize("kind", ["link", "dangling", "file", "fifo", "wide", "other", "longer"])
def test_what_is_not_ours_stays(kind: str, temporary: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir(mode=0o700)
    (target / "mine").write_text("mine")
    path = temporary / (NAME if kind != "longer" else f"{NAME}4")
    match kind:
        case "link":
            path.symlink_to(target)
        case "dangling":
            path.symlink_to("nothing")
        case "file":
            path.write_text("mine")
        case "fifo":
            os.mkfifo(path)
        case "wide":
            path.mkdir()
            path.chmod(0o755)
        case "other":
            if os.geteuid() != 0:
                pytest.skip("needs root to make another user's folder")
            path.mkdir(mode=0o700)
            os.chown(path, 65534, 65534)
        case "longer":
            path.mkdir(mode=0o700)
    with Scratch():
        pass
    assert os.path.lexists(path)
    assert (target / "mine").read_text() == "mine"


def test_many_that_begin_and_end_at_once_keep_their_own(temporary: Path) -> None:
    lost: list[Path] = []

    def work() -> None:
        for _ in range(100):
            with Scratch() as scratch:
                if not scratch.path.is_dir():
                    lost.append(scratch.path)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert lost == []
    assert os.listdir(temporary) == []


def test_nowhere_to_write_is_one_error(temporary: Path, monkeypatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(temporary / "gone"))
    with pytest.raises(OutputError) as caught:
        Scratch()
    assert caught.value.hint.startswith("export TMPDIR=")


def test_a_command_that_was_killed_leaves_nothing_to_the_next(temporary: Path) -> None:
    words = ["check", "--calibration", EXAMPLE / "calibration.json", "--stdin", "--json"]
    command = [sys.executable, "-m", "mmcalib", *map(str, words), "--allow-unknown"]
    killed = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert killed.stdin is not None
    assert killed.stdout is not None
    killed.stdin.write(b"/no/such.png\n")
    killed.stdin.flush()
    assert json.loads(killed.stdout.readline())
    assert len(os.listdir(temporary)) == 1
    killed.kill()
    killed.communicate()
    assert len(os.listdir(temporary)) == 1
    subprocess.run(command, input=b"/no/such.png\n", capture_output=True, check=False)
    assert os.listdir(temporary) == []


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
