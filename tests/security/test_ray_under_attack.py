"""A Ray cluster whose processes are attacked, or that is none at all."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mmcalib.census import ray as subject
from mmcalib.census.executor import ProbeResult
from mmcalib.census.ray import RayExecutor
from mmcalib.errors import MmcalibError
from tests.census.decoders import behave
from tests.census.test_ray import looking, marked, orders, parent, soon

pytest.importorskip("ray")

pytestmark = pytest.mark.slow


@contextmanager
def a_mark(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """What tells the processes that were begun here, of which none is left."""
    mark = f"MMCALIB_TEST={uuid.uuid4().hex}"
    monkeypatch.setenv(*mark.split("="))
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    yield mark
    assert soon(lambda: not marked(mark))


def test_items_and_processes_that_misbehave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A decoder that ends, waits and grows, and then the process of Ray itself is stopped."""
    with (
        a_mark(monkeypatch) as mark,
        RayExecutor(behave, address="local", workers=1, timeout_s=2) as executor,
    ):
        bad = orders(tmp_path, "a", "segfault", "hang", "grow")
        lines = [answer.line for answer in executor.result(executor.submit(bad))]
        assert [json.loads(line)[0] for line in lines] == ["image"] + ["skipped"] * 3
        assert "SIGSEGV" in lines[1]
        assert "took more than 2 s" in lines[2]
        slow = orders(tmp_path, *(f"slow{number}" for number in range(20)))
        ticket = executor.submit(slow)
        assert soon(lambda: bool(looking(mark)))
        os.kill(parent(looking(mark)[0]), signal.SIGSTOP)
        answers = executor.result(ticket)
        assert answers == [
            ProbeResult(
                f'["image",{len(os.path.basename(order.item.path))},1]', order.version or ""
            )
            for order in slow
        ]


def flood(listener: socket.socket) -> None:
    def answer() -> None:
        with contextlib.suppress(OSError):
            while True:
                sock, _ = listener.accept()
                with sock:
                    sock.sendall(os.urandom(100_000))

    threading.Thread(target=answer, daemon=True).start()


@pytest.mark.parametrize("answering", [False, True], ids=["silent", "garbage"])
def test_an_address_that_is_no_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answering: bool
) -> None:
    """Ray itself would wait for minutes."""
    monkeypatch.setattr(subject, "_REACH_S", 3)
    with a_mark(monkeypatch), socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        monkeypatch.setenv("RAY_ADDRESS", address)
        began_s = time.monotonic()
        if answering:
            flood(listener)
        executor = RayExecutor(behave)
        with executor, pytest.raises(MmcalibError, match="no Ray cluster answers there"):
            executor.submit(orders(tmp_path, "a"))
        assert time.monotonic() - began_s < 60
