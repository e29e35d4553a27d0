"""Shared fixtures: working folder, sample corpus, one engine host per session."""

import contextlib
import ctypes
import importlib.util
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from mmcalib.engine.host import EngineHost

ROOT = Path(__file__).resolve().parent.parent

# What `make demo` leaves in a checkout, which tests do not touch.
RESULTS = ("out", "sample", "sample-archives")

# A shell's background jobs, and their children, ignore the interrupts that tests send.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


# A busy machine is not a failure.
settings.register_profile("no-deadline", deadline=None)
settings.load_profile("no-deadline")


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("engine") and importlib.util.find_spec("vllm") is None:
        pytest.skip("needs vLLM: make setup")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the tests of vLLM last: they take longest."""
    items.sort(key=_is_heavy)


def _is_heavy(item: pytest.Item) -> bool:
    parts = {"conformance", "e2e", "engine", "rehearsal"} & {*item.path.relative_to(ROOT).parts}
    return bool(parts) or item.get_closest_marker("engine") is not None


@pytest.fixture(scope="session", autouse=True)
def working_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Run in an empty folder with a cache of its own; child processes import the checkout."""
    folder = tmp_path_factory.mktemp("working")
    before = _results()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)
        patch.setenv("MMCALIB_CACHE_DIR", str(tmp_path_factory.mktemp("user-cache")))
        # Nor what runs on the machine: the cluster of another test loses nodes.
        patch.setenv("RAY_ADDRESS", "local")
        yield folder
    assert _results() == before, f"a test has changed {' or '.join(RESULTS)} of the checkout"


@pytest.fixture(autouse=True)
def nothing_is_left_behind(working_folder: Path) -> Iterator[None]:
    yield
    left = os.listdir(working_folder)
    for name in left:
        (working_folder / name).rename(working_folder.with_name(f"{name}-left-behind"))
    assert left == [], "written to the working folder, which is no place for a test's files"


def _results() -> dict[str, int]:
    """Every file of a job's results in the checkout, with when it was changed."""
    return {
        os.path.join(parent, name): os.lstat(os.path.join(parent, name)).st_mtime_ns
        for result in RESULTS
        for parent, folders, files in os.walk(ROOT / result)
        for name in [*folders, *files]
    } | {result: 0 for result in RESULTS if (ROOT / result).exists()}


# capabilities(7), capget(2), prctl(2).
_VERSION_3 = 0x20080522
_PR_GET_SECUREBITS, _PR_SET_SECUREBITS = 27, 28
# Else root's children get all powers back (first), and access(2) checks regainable ones (second).
_NOROOT, _NO_SETUID_FIXUP = 1, 4


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Sets(ctypes.Structure):
    _fields_ = (
        ("effective", ctypes.c_uint32),
        ("permitted", ctypes.c_uint32),
        ("inheritable", ctypes.c_uint32),
    )


@contextlib.contextmanager
def powerless() -> Iterator[None]:
    """Drop root's capabilities for this thread and its children. Raise OSError where it cannot."""
    if os.geteuid() != 0:
        yield
        return
    libc = ctypes.CDLL(None, use_errno=True)

    def call(function: str, *arguments: object) -> int:
        result: int = getattr(libc, function)(*arguments)
        if result < 0:
            raise OSError(ctypes.get_errno(), function)
        return result

    header, sets = _Header(_VERSION_3, 0), (_Sets * 2)()
    call("capget", ctypes.byref(header), sets)
    before = [one.effective for one in sets]
    bits = call("prctl", _PR_GET_SECUREBITS, 0, 0, 0, 0)
    call("prctl", _PR_SET_SECUREBITS, bits | _NOROOT | _NO_SETUID_FIXUP, 0, 0, 0)
    try:
        _set_effective(call, header, sets, [0, 0])
        yield
    finally:
        _set_effective(call, header, sets, before)
        call("prctl", _PR_SET_SECUREBITS, bits, 0, 0, 0)


def _set_effective(
    call: Callable[..., int], header: _Header, sets: ctypes.Array[_Sets], effective: list[int]
) -> None:
    for one, value in zip(sets, effective, strict=True):
        one.effective = value
    call("capset", ctypes.byref(header), sets)


@pytest.fixture
def ordinary_user() -> Iterator[None]:
    """Permissions of files count, also where root runs the tests."""
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(powerless())
        except OSError as error:
            pytest.skip(f"needs leave to give up root's powers: {error}")
        yield


@pytest.fixture(scope="session")
def sample() -> Path:
    """The media that `make demo` fetches; tests that need them skip without."""
    folder = (ROOT / "sample").resolve()
    if not (folder / "requests.jsonl").is_file():
        pytest.skip("needs the sample corpus: python datasets/materialise.py sample")
    return folder


@pytest.fixture(scope="session")
def engine_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of this session's bundled checkpoints."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="session")
def with_vllm() -> None:
    if importlib.util.find_spec("vllm") is None:
        pytest.skip("needs vLLM: make setup")


@pytest.fixture(scope="session")
def host(with_vllm: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineHost]:
    """One real child process with vLLM, shared by all tests that only measure."""
    with EngineHost(log=tmp_path_factory.mktemp("engine") / "engine.log") as host:
        yield host
