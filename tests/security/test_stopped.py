"""Children that are stopped (SIGSTOP): waited for no longer than others, and never left behind."""

import io
import json
import os
import signal
import stat
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mmcalib.census.executor import ProbeTask
from mmcalib.census.pool import LocalPool
from mmcalib.domain.items import Item
from mmcalib.engine.host import EngineHost
from mmcalib.engine.messages import OpenModel
from mmcalib.errors import EngineSilent, OutputError
from mmcalib.files import Scratch
from mmcalib.storage.access import write_copy
from tests.builders import some
from tests.census.decoders import behave
from tests.corpus import tars
from tests.corpus.serving import serving
from tests.processes import is_alive, started_with, wait_until
from tests.programs import run_python, start_python
from tests.security.commands import started

ALLOWED = ("--allowed-media-domains", "127.0.0.1")


def children(pid: int) -> list[int]:
    """The processes that it has started itself."""
    found: list[int] = []
    for thread in Path(f"/proc/{pid}/task").glob("*"):
        found += map(int, (thread / "children").read_text().split())
    return found


def test_a_stopped_worker_is_replaced_and_its_items_are_looked_at_again(tmp_path: Path) -> None:
    with LocalPool(behave, workers=1, timeout_s=1.0) as pool:
        first = pool.submit([ProbeTask(Item(str(tmp_path / "a.png")))])
        assert [answer.line for answer in first()] == ['["image",5,1]']
        (pid,) = (worker.pid for worker in pool._workers.values())
        os.kill(pid, signal.SIGSTOP)
        began = time.monotonic()
        wait = pool.submit([ProbeTask(Item(str(tmp_path / f"{n}.png"))) for n in range(300)])
        answers = wait()
        assert time.monotonic() - began < 30
        assert not is_alive(pid)
    assert len(answers) == 300
    assert all(answer.line.startswith('["image"') for answer in answers)


@pytest.mark.parametrize(
    ("sign", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)]
)
def test_a_scan_with_stopped_workers_ends_at_once_and_leaves_none(sign, code, tmp_path) -> None:
    pytest.importorskip("aiohttp")
    media = tmp_path / "media"
    media.mkdir()
    (media / "a.png").write_bytes(tars.png())
    with serving() as server:
        server.hang = threading.Event()
        words = ["--data", media, "--data", server.put("slow.png", tars.png()), *ALLOWED]
        process = started(tmp_path, "scan", *words, "--quiet")
        wait_until(lambda: server.asked)
        workers = children(process.pid)
        assert workers
        for pid in workers:
            os.kill(pid, signal.SIGSTOP)
        process.send_signal(sign)
        _, err = process.communicate(timeout=30)
        server.hang.set()
    assert process.returncode == code
    assert "Traceback" not in err
    wait_until(lambda: not any(map(is_alive, workers)))
    assert started_with(f"HOME={tmp_path}\0") == []


def test_a_scan_goes_on_when_all_its_workers_are_stopped(tmp_path: Path) -> None:
    pytest.importorskip("aiohttp")
    media = tmp_path / "media"
    media.mkdir()
    for number in range(20):
        (media / f"{number}.png").write_bytes(tars.png(number + 1))
    with serving() as server:
        server.hang = threading.Event()
        words = ["--data", server.put("slow.png", tars.png()), "--data", media, *ALLOWED]
        process = started(tmp_path, *("scan", *words, "--json", "--quiet", "--item-timeout", "2"))
        wait_until(lambda: server.asked)
        server.hang.set()
        for pid in children(process.pid):
            os.kill(pid, signal.SIGSTOP)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
    corpus = json.loads(out)["corpus"]
    assert (corpus["items"], corpus["skipped"]) == (20, 1)  # the server never answers the one
    assert started_with(f"HOME={tmp_path}\0") == []


STUCK = """
import sys
from mmcalib.census.executor import ProbeTask
from mmcalib.census.pool import LocalPool
from mmcalib.domain.items import ByteSource, Item
from tests.census.decoders import behave
def order(name):
    source = ByteSource("1:1", 1 << 23, data=bytes(1 << 23))
    return ProbeTask(Item(f"/m/{name}", byte_source=source))
with LocalPool(behave, workers=1, timeout_s=1.0) as pool:
    waits = [pool.submit([order(f"hang{n}.png"), order(f"ok{n}.png")]) for n in range(2)]
    print(sum("skipped" in answer.line for wait in waits for answer in wait()))
"""

SILENT = """
import os, signal, sys, time
from pathlib import Path
from mmcalib.engine.host import EngineHost
from mmcalib.engine.messages import OpenModel
from mmcalib.errors import EngineSilent
with EngineHost(log=Path(sys.argv[1]), silence_s=1.0) as host:
    time.sleep(3)
    os.kill(host.pid, signal.SIGSTOP)
    try:
        host.ask(OpenModel("x" * (1 << 23)), "opening the model")
    except EngineSilent:
        print(2)
"""


@pytest.mark.parametrize("code", [STUCK, SILENT], ids=["pool", "engine"])
def test_what_is_too_large_for_a_pipe_waits_no_longer(code: str, tmp_path: Path) -> None:
    assert run_python("-c", code, tmp_path / "engine.log", timeout=60).stdout == "2\n"


def test_a_stopped_engine_is_silent_and_goes_with_all_that_it_has_started(tmp_path: Path) -> None:
    host = EngineHost(log=tmp_path / "engine.log", silence_s=1.0)
    try:
        os.kill(host.pid, signal.SIGSTOP)
        began = time.monotonic()
        with pytest.raises(EngineSilent, match="did not respond for 1 s while opening"):
            host.ask(OpenModel(str(tmp_path)), "opening the model")
        assert time.monotonic() - began < 15
        assert not is_alive(host.pid)
    finally:
        host.close()


def test_closing_ends_an_engine_that_is_stopped(tmp_path: Path) -> None:
    host = EngineHost(log=tmp_path / "engine.log")
    os.kill(host.pid, signal.SIGSTOP)
    began = time.monotonic()
    host.close()
    host.close()
    assert time.monotonic() - began < 15
    assert not is_alive(host.pid)


PARENT = """
import sys, time
from pathlib import Path
from mmcalib.engine.host import EngineHost
host = EngineHost(log=Path(sys.argv[1]))
time.sleep(3)
print(host.pid, flush=True)
time.sleep(60)
"""


def python(code: str, path: Path) -> tuple[subprocess.Popen[str], str]:
    """Start a program with a path, and return it with the first line that it prints."""
    process = start_python("-c", code, path, stdin=subprocess.PIPE, stderr=None)
    return process, some(process.stdout).readline().strip()


def test_a_stopped_engine_does_not_outlive_a_parent_that_is_killed(tmp_path: Path) -> None:
    parent, said = python(PARENT, tmp_path / "engine.log")
    child = int(said)
    os.kill(child, signal.SIGSTOP)
    parent.kill()
    parent.communicate()
    try:
        wait_until(lambda: not is_alive(child))
    finally:
        if is_alive(child):
            os.kill(child, signal.SIGKILL)


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
def tmpdir(tmp_path: Path, monkeypatch) -> Path:
    folder = tmp_path / "tmpdir"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr("tempfile.tempdir", None)
    return folder


@pytest.fixture
def holder(tmpdir: Path, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process with a folder, in which a link leads elsewhere."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "mine").write_text("mine")
    process, said = python(HOLDER, tmp_path / "elsewhere")
    assert Path(said).parent == tmpdir
    yield process
    process.kill()
    process.communicate()


def test_an_end_leaves_nothing(holder: subprocess.Popen[str], tmpdir: Path, tmp_path: Path) -> None:
    (folder,) = tmpdir.iterdir()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    holder.communicate(timeout=30)
    assert os.listdir(tmpdir) == []
    assert (tmp_path / "elsewhere" / "mine").read_text() == "mine"


def test_nowhere_to_write_is_one_error(tmpdir: Path, monkeypatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmpdir / "gone"))
    with pytest.raises(OutputError) as caught:
        Scratch()
    assert caught.value.hint.startswith("export TMPDIR=")


def test_copies_of_inline_media_are_their_owners_alone(tmp_path: Path) -> None:
    folder = tmp_path / "cache" / "inline"
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    path = write_copy(io.BytesIO(b"x"), folder / "a.png", 1)
    assert stat.S_IMODE(os.stat(folder).st_mode) == 0o700
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    write_copy(io.BytesIO(b"x"), tmp_path / "new" / "inline" / "a.png", 1)
    assert stat.S_IMODE(os.stat(tmp_path / "new" / "inline").st_mode) == 0o700
