"""Real clusters: several nodes on this machine, each with processes of its own."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mmcalib.census import ray as subject
from mmcalib.census.executor import Executor, ProbeFunction, ProbeResult, ProbeTask
from mmcalib.census.pool import LocalPool
from mmcalib.census.ray import RayExecutor
from mmcalib.domain.items import ByteSource, Item
from mmcalib.errors import CorpusError, MmcalibError, UsageError
from mmcalib.media.probe import probe
from mmcalib.storage.location import item_version
from tests.census.decoders import behave, held_bytes
from tests.census.looking import Inline, orders
from tests.processes import started_with, wait_until
from tests.programs import start_python
from tests.security.servers import server

if TYPE_CHECKING:
    from ray.cluster_utils import Cluster

ray = pytest.importorskip("ray")
cluster_utils = pytest.importorskip("ray.cluster_utils")
pytestmark = pytest.mark.slow
NODE = {"num_cpus": 1, "object_store_memory": 80 << 20}

# Processes inherit it from the cluster, so those of others are told apart.
MARK = f"MMCALIB_TEST={uuid.uuid4().hex}"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(*MARK.split("="))
        patch.setenv("RAY_AUTH_MODE", "disabled")
        # Where Ray notes a cluster for all who look for one, and where other tests look.
        notes = Path(tempfile.mkdtemp(prefix="ray-"))
        patch.setenv("RAY_TMPDIR", str(notes))
        head = {**NODE, "include_dashboard": False}
        cluster = cluster_utils.Cluster(initialize_head=True, head_node_args=head)
        cluster.add_node(**NODE)
        patch.setenv("RAY_ADDRESS", cluster.address)
        yield cluster
        cluster.shutdown()
        shutil.rmtree(notes)


def answered(executor: Executor, chunks: Sequence[Sequence[ProbeTask]]) -> list[list[ProbeResult]]:
    with closing(executor):
        waits = [executor.submit(chunk) for chunk in chunks]
        return [wait() for wait in waits]


def looking(mark: str = MARK) -> list[int]:
    """Processes of this test's cluster that look at items."""
    return [pid for pid in started_with(mark) if b"census.worker" in command_of(pid)]


def command_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def joined(executor: RayExecutor, folder: Path) -> str:
    """The address of the cluster that the executor uses."""
    with executor:
        executor.submit(orders(folder, "a"))()
        found: str = ray.get_runtime_context().gcs_address
        return found


def test_a_cluster_that_a_process_began_for_itself_is_left_alone(tmp_path, monkeypatch) -> None:
    """It ends with its process. Runs first: Ray finds a cluster only where it is the only one."""
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.delenv("RAY_ADDRESS")
    script = (
        "import ray\n"
        "ray.init('local', num_cpus=1, include_dashboard=False, log_to_driver=False)\n"
        "print(ray.get_runtime_context().gcs_address, flush=True)\n"
        "input()"
    )
    pipes = {"stdin": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with start_python("-c", script, **pipes) as other:
        assert other.stdout is not None
        theirs = other.stdout.readline().strip()
        assert ":" in theirs
        ours = joined(RayExecutor(behave), tmp_path)
        other.communicate("\n", timeout=60)
    assert ours != theirs


def test_decoders_that_misbehave_cost_the_same(cluster, tmp_path: Path) -> None:
    names = ["a", "segfault", "hang", "bb", "explode", "grow", "once"]
    chunk = orders(tmp_path, *names)
    near = answered(LocalPool(behave, workers=1, timeout_s=1), [chunk])
    (tmp_path / "once.seen").unlink()
    chunk = orders(tmp_path, *names)
    far = answered(RayExecutor(behave, timeout_s=1), [chunk])
    assert [answer.line for answer in far[0]] == [answer.line for answer in near[0]]


def test_bytes_that_only_the_source_has_travel_along(cluster) -> None:
    item = Item(
        "zip://a.jpg::/nowhere.zip", "image", ByteSource("1:1", 1 << 20, data=b"x" * (1 << 20))
    )
    chunk = [ProbeTask(item, version=item_version(item))]
    seen = answered(RayExecutor(held_bytes), [chunk])
    assert seen[0][0].line == f'["image",{1 << 20},1]'


def test_a_lost_node_changes_no_answer(cluster, tmp_path: Path) -> None:
    node = cluster.add_node(**NODE)
    # Half a second each.
    chunks = [orders(tmp_path, *(f"slow{part}{n}" for n in range(10))) for part in range(6)]
    with RayExecutor(behave) as executor:
        waits = [executor.submit(chunk) for chunk in chunks]
        wait_until(lambda: len(looking()) == 3, 60)
        cluster.remove_node(node, allow_graceful=False)
        seen = [wait() for wait in waits]
    assert seen == answered(Inline(behave), chunks)


def test_nothing_is_left_on_a_cluster_that_goes_on(cluster, tmp_path: Path) -> None:
    with RayExecutor(behave, timeout_s=600) as executor:
        for name in ("hang1", "hang2", "hang3"):
            executor.submit(orders(tmp_path, name))
        wait_until(lambda: len(looking()) == 2, 60)
    wait_until(lambda: not looking(), 60)
    assert not ray.is_initialized()


def test_ray_that_was_initialised_before_stays_so(cluster, tmp_path: Path, monkeypatch) -> None:
    ray.init(cluster.address, log_to_driver=False)
    monkeypatch.setenv("RAY_ADDRESS", "elsewhere:1")
    try:
        with RayExecutor(behave, timeout_s=600) as executor:
            executor.submit(orders(tmp_path, "hang"))
            wait_until(lambda: len(looking()) == 1, 60)
        wait_until(lambda: not looking(), 60)
        assert ray.is_initialized()
    finally:
        ray.shutdown()


def test_a_cluster_that_was_started_is_found(cluster, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS")
    assert joined(RayExecutor(behave), tmp_path) == cluster.address


def test_an_interrupted_run_leaves_no_process(tmp_path: Path) -> None:
    mark = f"MMCALIB_TEST={uuid.uuid4().hex}"
    script = (
        "from tests.census.test_ray import *\n"
        f"chunk = orders(Path({str(tmp_path)!r}), 'hang')\n"
        "answered(RayExecutor(behave, timeout_s=600), [chunk])"
    )
    name, value = mark.split("=")
    alone = {name: value, "RAY_ADDRESS": "local", "RAY_AUTH_MODE": "disabled"}
    run = start_python("-c", script, env=os.environ | alone, start_new_session=True)
    wait_until(lambda: len(looking(mark)) == 1, 30)
    os.killpg(run.pid, signal.SIGINT)
    _, said = run.communicate(timeout=30)
    assert said.splitlines()[-1] == "KeyboardInterrupt"
    wait_until(lambda: not started_with(mark), 60)


def test_what_ends_everything_is_raised_as_it_was(cluster, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="a package is missing") as raised:
        answered(RayExecutor(behave), [orders(tmp_path, "a", "missing")])
    assert raised.value.hint == "pip install it"


def test_a_node_without_the_files_is_named(cluster, tmp_path: Path) -> None:
    gone, _ = orders(tmp_path, "gone", "here")
    (tmp_path / "gone").unlink()
    folder = os.open(tmp_path, os.O_RDONLY)
    try:
        here_alone = Item(f"/proc/self/fd/{folder}/here")
        unseen = ProbeTask(here_alone, version=item_version(here_alone))
        with RayExecutor(probe) as executor:
            (answer,) = executor.submit([gone])()
            assert answer == ProbeResult('["skipped", "no such file"]')
            with pytest.raises(CorpusError, match="cannot see /proc/self/fd"):
                executor.submit([gone, unseen])()
    finally:
        os.close(folder)


def test_nodes_that_cannot_import_the_look_are_one_error(cluster, tmp_path, monkeypatch) -> None:
    (tmp_path / "only_here.py").write_text("def look(item): ...")
    monkeypatch.syspath_prepend(tmp_path)
    import only_here  # type: ignore[import-not-found]

    look: ProbeFunction = only_here.look
    with pytest.raises(MmcalibError, match="No module named 'only_here'") as raised:
        answered(RayExecutor(look), [orders(tmp_path, "a")])
    assert "\n" not in raised.value.message
    assert raised.value.hint == "pip install the same mmcalib on every node"


def test_without_ray_the_remedy_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UsageError) as raised:
        RayExecutor(behave)
    assert raised.value.hint == "pip install 'mmcalib[ray]'"


@pytest.mark.parametrize(
    ("cpus", "workers", "share"),
    [([8], None, 1), ([8], 2, 4), ([8], 3, 3), ([8], 16, 0.5), ([64, 2], 4, 2), ([8, 8], 8, 1)],
)
def test_a_chunk_claims_what_leaves_room_for_the_workers(cpus, workers, share: float) -> None:
    assert subject._share(cpus, workers) == share


@pytest.mark.parametrize("said", [b"", os.urandom(100_000)], ids=["silent", "garbage"])
def test_an_address_that_is_no_cluster(tmp_path: Path, monkeypatch, said: bytes) -> None:
    """Ray itself would wait for minutes. None of its processes is left."""
    mark = f"MMCALIB_TEST={uuid.uuid4().hex}"
    monkeypatch.setenv(*mark.split("="))
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.setattr(subject, "_REACH_S", 3)
    with server(lambda asked: asked.send(said) if said else asked.wait(60)) as other:
        monkeypatch.setenv("RAY_ADDRESS", other.url.removeprefix("http://"))
        began_s = time.monotonic()
        executor = RayExecutor(behave)
        with executor, pytest.raises(MmcalibError, match="no Ray cluster answers"):
            executor.submit(orders(tmp_path, "a"))
        assert time.monotonic() - began_s < 60
    wait_until(lambda: not started_with(mark), 60)
