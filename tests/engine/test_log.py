"""The log of an engine process, line by line while it grows."""

import os
import tempfile
import time
from pathlib import Path
from threading import Thread

import pytest

from mmcalib.engine.host import ChildLog, EngineHost, LogTail, last_line
from mmcalib.engine.messages import OpenModel, ProbeEnvironment
from mmcalib.errors import EngineDied, VllmRefused
from tests.builders import some
from tests.processes import wait_until
from tests.programs import executable


def test_every_finished_line_is_heard_once(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("before\n")
    heard: list[str] = []
    tail = LogTail(log, heard.append)
    with log.open("a") as file:
        for text in ("one\ntw", "o\n\n", "loading 1%\rloading 100%\r\nrest"):
            file.write(text)
            file.flush()
            tail.follow()
    assert heard == ["one", "two", "loading 100%"]
    assert last_line(log) == "rest"


def test_bytes_of_any_kind_are_heard(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"")
    heard: list[str] = []
    tail = LogTail(log, heard.append)
    log.write_bytes(b"\xff\n")
    tail.follow()
    assert heard == ["�"]
    assert last_line(log) == "�"


def test_a_process_that_dies_is_heard_to_its_end(tmp_path: Path) -> None:
    bare = executable(tmp_path / "python", "#!/bin/sh\necho loading\necho giving up >&2\nexit 7\n")
    heard: list[str] = []
    with (
        EngineHost(python=bare, on_log=heard.append) as host,
        pytest.raises(EngineDied, match="exit code 7 while looking: giving up"),
    ):
        host.ask(ProbeEnvironment(), "looking")
    assert heard == ["loading", "giving up"]


def test_logs_that_errors_point_to_do_not_pile_up(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    kept = []
    for number in range(25):
        with ChildLog(None) as log:
            log.path.write_text(str(number))
            kept.append(some(log.keep()))
            since = time.time() - 60 + number
            os.utime(kept[-1].parent, (since, since))
        assert kept[-1].read_text() == str(number)
    assert [path.exists() for path in kept] == [False] * 20 + [True] * 5
    os.utime(kept[-1].parent, (0, 0))
    ChildLog(None).close()
    assert [path.exists() for path in kept[-2:]] == [True, False], "a day later it goes"


@pytest.mark.engine
def test_a_refusal_keeps_its_log_only_if_it_ends_the_job(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def ask(host: EngineHost) -> None:
        host._log.path.write_text("words\n")
        host.ask(OpenModel("nowhere"), "opening")

    with EngineHost() as host, pytest.raises(VllmRefused) as trial:
        ask(host)
    assert (trial.value.hint, list(tmp_path.iterdir())) == ("", [])
    with pytest.raises(VllmRefused) as last, EngineHost() as host:
        ask(host)
    log = Path(last.value.hint.removeprefix("full log: "))
    assert log.read_text().startswith("words")
    assert list(tmp_path.iterdir()) == [log.parent]


def test_no_log_stays_that_says_nothing_or_that_nobody_is_told_of(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with ChildLog(None) as log:
        assert log.keep() is None
    died: list[str] = []
    bare = executable(tmp_path / "python", "#!/bin/sh\necho loading\nexec sleep 60\n")
    host = EngineHost(python=bare)

    def ask() -> None:
        try:
            host.ask(ProbeEnvironment(), "looking")
        except EngineDied as error:
            died.append(error.hint)

    asking = Thread(target=ask)
    asking.start()
    wait_until(lambda: host._log.path.stat().st_size)
    host.close()
    asking.join(60)
    assert died == [""]
    assert [path.name for path in tmp_path.iterdir()] == ["python"]
