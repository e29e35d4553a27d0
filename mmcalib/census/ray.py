"""Executor on a Ray cluster."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import math
import os
import queue
import socket
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Sequence
from concurrent.futures import Future
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from mmcalib.census.executor import TIMEOUT_S, Look, ProbeResult, ProbeTask, count_fitting
from mmcalib.census.pool import MEMORY_BYTES, LocalPool
from mmcalib.census.worker import (
    Packed,
    PackedAnswer,
    pack_answer,
    pack_task,
    unpack_answer,
    unpack_task,
)
from mmcalib.errors import CorpusError, MmcalibError, UsageError
from mmcalib.processes import SAFE, Closing, Worker, safe_environment
from mmcalib.storage.location import Location, allowed_hosts, allowing

# A pool that waits longer than a slow driver takes between two chunks has been left behind.
_IDLE_S = 10.0


class PoolOptions(NamedTuple):
    """What a pool is made with; it reads from these hosts."""

    look: Look
    timeout_s: float
    memory_bytes: int
    hosts: frozenset[str] = frozenset()


class ChunkResult(NamedTuple):
    """A task's answers after so many seconds; `unseen` files are here, not on `node`."""

    answers: list[PackedAnswer]
    node: str
    seconds: float = 0.0
    unseen: Sequence[str] = ()
    failure: MmcalibError | None = None


def probe_chunk(chunk: list[Packed], options: PoolOptions) -> ChunkResult:
    """The task, in a Ray worker process."""
    node = socket.gethostname()
    orders = [unpack_task(order) for order in chunk]
    began_s = time.monotonic()
    try:
        answers = _pool_thread().ask(orders, options).result()
    except MmcalibError as error:
        return ChunkResult([], node, failure=error)
    seconds = time.monotonic() - began_s
    unseen = [
        _file(order)
        for order, answer in zip(orders, answers, strict=True)
        if order.version != "" and not answer.version and not os.path.lexists(_file(order))
    ]
    return ChunkResult([pack_answer(answer) for answer in answers], node, seconds, unseen)


def _file(order: ProbeTask) -> str:
    """What must lie on the node; of a member, its archive."""
    location = Location.of(order.item.path)
    return location.archive or location.path


_Question = tuple[list[ProbeTask], PoolOptions, Future[list[ProbeResult]]]


class PoolThread:
    """The thread of a Ray worker process that owns a pool from task to task.

    A pool dies with its thread, and Ray promises none to tasks; the pool ends when idle.
    """

    def __init__(self) -> None:
        self._asked: queue.SimpleQueue[_Question] = queue.SimpleQueue()
        threading.Thread(target=self._run, daemon=True).start()

    def ask(self, orders: list[ProbeTask], options: PoolOptions) -> Future[list[ProbeResult]]:
        future: Future[list[ProbeResult]] = Future()
        self._asked.put((orders, options, future))
        return future

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            # It dies with this thread.
            self._watch = Worker("mmcalib.census.ray_watch", os.getpid(), send_s=_REACH_S)
        while True:
            orders, options, future = self._asked.get()
            look, timeout_s, memory_bytes, hosts = options
            with (
                contextlib.suppress(queue.Empty),
                allowing(hosts),
                LocalPool(look, workers=1, timeout_s=timeout_s, memory_bytes=memory_bytes) as pool,
            ):
                while True:
                    try:
                        future.set_result(pool.result(pool.submit(orders)))
                    except BaseException as error:  # noqa: BLE001 - the task raises it
                        future.set_exception(error)
                        break
                    orders, asked, future = self._asked.get(timeout=_IDLE_S)
                    if asked != options:
                        self._asked.put((orders, asked, future))
                        break


_pool_thread = cache(PoolThread)

# A cluster that is there says so within one second. Ray itself waits for minutes.
_REACH_S = 10.0

_SILENT = "no Ray cluster answers there"
_TOKEN = "it wants a token; RAY_AUTH_MODE=token makes Ray send one"  # noqa: S105

# A task takes some milliseconds beside its items, and what it saw is remembered when it ends.
_CHUNK_S = 0.5
_LARGEST_CHUNK = 256

# For a Ray that is begun here: chunks are small, and a tenth of Ray's minimum would do.
_STORE_BYTES = 80 << 20


class RayExecutor(Closing):
    """Runs chunks as Ray tasks, which Ray repeats elsewhere if it loses a worker or node.

    The first chunk connects: to a Ray initialised in this process (left as it was), else `address`,
    `RAY_ADDRESS`, this machine's `ray start`, or a cluster of its own. `workers` bounds chunks at a
    time per node (default: one per CPU). Items end as in `LocalPool`; nodes must be able to import
    `look`.
    """

    def __init__(
        self,
        look: Look,
        *,
        address: str | None = None,
        workers: int | None = None,
        timeout_s: float = TIMEOUT_S,
        memory_bytes: int = MEMORY_BYTES,
    ) -> None:
        if importlib.util.find_spec("ray") is None:
            raise UsageError(
                "the Ray executor needs Ray, which is not installed",
                hint="pip install 'mmcalib[ray]'",
            )
        self._options = PoolOptions(look, timeout_s, memory_bytes, allowed_hosts())
        self._address, self._workers = address, workers
        self._ray: ModuleType | None = None
        self._task: Any = None
        self._ours = False
        self._under_way: set[Any] = set()
        self.ahead = 0
        self.chunk_items = _LARGEST_CHUNK

    def submit(self, orders: Sequence[ProbeTask]) -> Any:
        """Raises MmcalibError where no cluster can be reached."""
        if self._task is None:
            self._connect()
        reference = self._task.remote([pack_task(order) for order in orders], self._options)
        self._under_way.add(reference)
        return reference

    def result(self, ticket: Any) -> list[ProbeResult]:
        """Raises MmcalibError if nothing can be looked at, CorpusError if a node lacks files."""
        assert self._ray is not None
        try:
            found: ChunkResult = self._ray.get(ticket)
        except self._ray.exceptions.RayError as error:
            in_the_task = isinstance(error, self._ray.exceptions.RayTaskError)
            raise MmcalibError(
                f"a task on the Ray cluster failed: {_last_line(error)}",
                hint="pip install the same mmcalib on every node"
                if in_the_task
                else "start it again when the cluster is well: what was seen is remembered",
            ) from error
        self._under_way.discard(ticket)
        if found.failure is not None:
            raise found.failure
        for path in found.unseen:
            if os.path.lexists(path):
                raise CorpusError(
                    f"{found.node}, a node of the Ray cluster, cannot see {path}",
                    hint="mount the corpus on every node at the same path, or use --executor local",
                )
        wanted = count_fitting(len(found.answers), found.seconds, _CHUNK_S)
        self.chunk_items = min(wanted, _LARGEST_CHUNK)
        return [unpack_answer(answer) for answer in found.answers]

    def close(self) -> None:
        """Where Ray was initialised by others, nodes keep idle processes for ten seconds more."""
        if self._ray is None:
            return
        ray, self._ray, self._task = self._ray, None, None
        if self._ours:
            ray.shutdown()
            return
        for reference in self._under_way:
            with contextlib.suppress(Exception):  # it ended meanwhile, or its node did
                ray.cancel(reference, force=True)
        self._under_way.clear()

    def _connect(self) -> None:
        # A tool for machines without a network sends no statistics, unless it was asked to.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        import ray

        self._ray = ray
        if not ray.is_initialized():
            self._ours = True
            _initialise(ray, self._address or os.environ.get("RAY_ADDRESS") or "")
        nodes = [node for node in self._ray.nodes() if node["Alive"]]
        cpus = [int(node["Resources"].get("CPU", 0)) for node in nodes]
        cpus = [number for number in cpus if number]
        if not cpus:
            raise MmcalibError(
                "no node of the Ray cluster has a CPU to spend",
                hint="ray status shows what the cluster has",
            )
        share = _share(cpus, self._workers)
        self.ahead = 2 * sum(int(have / share) for have in cpus)
        environment = dict(SAFE)
        root = Path(__file__).resolve().parents[2]
        if root.name not in ("site-packages", "dist-packages"):
            # A checkout. What a node has on its path follows. Where that is nothing, what is left
            # must not be empty: it would be the working folder.
            environment["PYTHONPATH"] = f"{root}:/${{PYTHONPATH}}"
        self._task = ray.remote(probe_chunk).options(
            name="mmcalib",
            num_cpus=share,
            max_retries=-1,
            scheduling_strategy="SPREAD",
            runtime_env={"env_vars": environment},
        )


def _initialise(ray: ModuleType, address: str) -> None:
    """Quietly, and never with Ray's own patience for a cluster that does not answer."""
    if not address:
        # Where Ray finds the cluster itself, it finds the token too. It would also find one that
        # some process began for itself, and that ends with it.
        started = _started()
        address = "auto" if started and _refusal(started) in ("", _TOKEN) else "local"
    elif address != "local" and "://" not in address and (why := _refusal(address)):
        raise _unreachable(address, why)
    begun = {"object_store_memory": _STORE_BYTES, "include_dashboard": False}
    try:
        # Ray's workers look for modules first where it was begun. The error says what Ray warns of.
        with contextlib.chdir("/"), warnings.catch_warnings(action="ignore"):
            ray.init(
                address=address,
                log_to_driver=False,
                logging_level=logging.CRITICAL,
                **(begun if address == "local" else {}),
            )
    except (Exception, SystemExit) as error:  # Ray raises nearly everything
        raise _unreachable(address, _last_line(error)) from error


def _started() -> str:
    """Where the last `ray start` of this machine began a cluster, as it noted, else empty."""
    # Source: Ray's get_default_system_temp_dir and get_ray_address_file.
    folder = os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp"  # noqa: S108
    try:
        return Path(folder, "ray", "ray_current_cluster").read_text().strip()
    except OSError:
        return ""


def _refusal(address: str) -> str:
    """Why a cluster cannot be used, or empty; asked by Ray's command, which can be stopped."""
    asking = ["-m", "ray.scripts.scripts", "health-check", "--address", address]
    try:
        ended = subprocess.run(
            [sys.executable, "-P", *asking],
            capture_output=True,
            timeout=_REACH_S,
            env=safe_environment(os.environ, sys.path),
            check=False,
        )
    except subprocess.TimeoutExpired:
        return _SILENT
    if ended.returncode == 0:
        return ""
    return _TOKEN if b"AuthenticationError" in ended.stderr else _SILENT


def _unreachable(address: str, why: str) -> MmcalibError:
    return MmcalibError(
        f"cannot use the Ray cluster at {address}: {why}",
        hint="ray status --address ADDRESS shows whether it runs; its port is mostly 6379",
    )


def _share(cpus: Sequence[int], workers: int | None) -> float:
    """The CPUs that one chunk claims, so that at most `workers` chunks fill the largest node; the
    smallest node takes part even so. Ray wants a whole number above 1.
    """
    if workers is None:
        return 1.0
    share = max(cpus) / workers
    return share if share <= 1 else float(min(math.ceil(share), min(cpus)))


def _last_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[-1].strip() if lines else type(error).__name__
