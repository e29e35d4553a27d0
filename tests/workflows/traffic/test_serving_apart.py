"""Requests served in a process of their own, each configuration once and as it was rehearsed."""

import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from mmcalib.domain.memory import RehearsedMemory
from mmcalib.domain.traffic import Trace, Traffic
from mmcalib.models.gpus import find_gpu
from mmcalib.prediction.rehearse import MemoryPrediction
from mmcalib.workflows.traffic.rehearse import BackgroundTraffic, traffic_figures
from tests.workflows.rehearsals import rehearsed

SOON_S = 60
TRACE, SERVED = Trace((), ()), Traffic((), None, (), 500, 4096, 0, 0, 0, 2.0)


class Startup:
    """Rehearses when it may; what has `small` in its arguments does not start."""

    def __init__(self) -> None:
        self.may = threading.Event()

    def rehearse(self, engine_args: Mapping[str, Any], steps: Any = ()) -> RehearsedMemory:
        assert self.may.wait(SOON_S)
        return rehearsed(kv_blocks=None if "small" in engine_args else 500)


class Server:
    def __init__(self) -> None:
        self.served: list[Mapping[str, Any]] = []

    def serve(self, engine_args: Mapping[str, Any], requests: object, arrivals: object) -> Traffic:
        self.served.append(engine_args)
        return SERVED


Served = tuple[BackgroundTraffic, Startup, Server]


@pytest.fixture
def traffic() -> Iterator[Served]:
    startup, server = Startup(), Server()
    with (
        MemoryPrediction(find_gpu("L4"), startup) as prediction,  # type: ignore[arg-type]
        MemoryPrediction(find_gpu("L4"), server) as thread,  # type: ignore[arg-type]
    ):
        yield BackgroundTraffic(prediction, thread, TRACE, Path("/cut")), startup, server
        startup.may.set()


def test_it_waits_for_the_rehearsal_and_for_nothing_after_it(traffic: Served) -> None:
    serving, startup, server = traffic
    serving.prediction.start({"max_model_len": 4096})
    asked = serving.start({"max_model_len": 4096})
    assert not asked.done()
    assert server.served == []
    startup.may.set()
    assert asked.result(SOON_S) == traffic_figures(SERVED, TRACE, rehearsed(kv_blocks=500))
    (args,) = server.served
    assert args["num_gpu_blocks_override"] == 500
    assert args["model"] == "/cut"


def test_each_configuration_is_served_once(traffic: Served) -> None:
    serving, startup, server = traffic
    startup.may.set()
    for args in ({"a": 1, "b": 2}, {"b": 2, "a": 1}, {"a": 2}):
        serving.prediction.start(args)
        serving.start(args).result(SOON_S)
    assert len(server.served) == 2


def test_what_does_not_start_serves_nothing(traffic: Served) -> None:
    serving, startup, server = traffic
    startup.may.set()
    serving.prediction.start({"small": True})
    assert serving.start({"small": True}).result(SOON_S) is None
    assert serving.start({"nobody": "asked"}).result(SOON_S) is None
    assert server.served == []
