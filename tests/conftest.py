"""Shared by all tests: where the development corpora are, and one engine host per session."""

from __future__ import annotations

import importlib.util
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from mmcalib.engine.host import EngineHost

ROOT = Path(__file__).resolve().parent.parent

# Shells have what they start in the background ignore interrupts, and that is inherited by what is
# interrupted here.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What runs vLLM takes longest and is begun first; each file stays in one worker."""
    items.sort(key=_is_light)


def _is_light(item: pytest.Item) -> bool:
    heavy = {"e2e", "engine", "rehearsal"} & set(item.path.relative_to(ROOT).parts)
    return not heavy and item.get_closest_marker("engine") is None


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of development corpora and facts; tests that need it skip without it."""
    folder = Path(os.environ.get("MMCALIB_SHARED", ROOT.parent / "shared"))
    if not folder.is_dir():
        pytest.skip("needs the development corpora: set MMCALIB_SHARED to their folder")
    return folder


@pytest.fixture(scope="session")
def engine_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where bundled checkpoints are written in this session."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="session")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineHost]:
    """One real child process with vLLM, shared by all tests that only measure."""
    if importlib.util.find_spec("vllm") is None:
        pytest.skip("needs vLLM: make setup")
    with EngineHost(log=tmp_path_factory.mktemp("engine") / "engine.log") as host:
        yield host
