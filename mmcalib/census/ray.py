"""The executor on a Ray cluster."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import socket
import subprocess
import sys
import warnings
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from mmcalib.census.executor import TIMEOUT_S, ProbeFunction, ProbeResult, ProbeTask
from mmcalib.census.pool import LocalPool
from mmcalib.errors import CorpusError, MmcalibError
from mmcalib.processes import SAFE, Closing, safe_environment
from mmcalib.storage.location import Location, allow_hosts, allowed_hosts
from mmcalib.storage.remote import import_optional


@lru_cache(maxsize=1)
def _pool(look: ProbeFunction, timeout_s: float) -> LocalPool:
    """Return the pool of this process of Ray, which stays from task to task."""
    return LocalPool(look, workers=1, timeout_s=timeout_s)


def probe_chunk(
    orders: list[ProbeTask], look: ProbeFunction, timeout_s: float, hosts: frozenset[str]
) -> tuple[list[ProbeResult], str, list[str]]:
    """Probe a chunk, and name this node and the files that it cannot see. This is the Ray task.
    Raises MmcalibError.
    """
    with allow_hosts(hosts):
        answers = _pool(look, timeout_s).submit(orders)()
    unseen = [
        _file(order)
        for order, answer in zip(orders, answers, strict=True)
        if order.version != "" and not answer.version and not os.path.lexists(_file(order))
    ]
    return answers, socket.gethostname(), unseen


def _file(order: ProbeTask) -> str:
    """Return the file that the node needs: for a member of an archive, the archive."""
    location = Location.of(order.item.path)
    return location.archive or location.path


# A running cluster answers within a second. Ray itself would wait for minutes.
_REACH_S = 10.0

_SILENT = "no Ray cluster answers"
_TOKEN = "the cluster needs a token: set RAY_AUTH_MODE=token"  # noqa: S105

# Long compared with a task's overhead of milliseconds, short because its end fills the cache.
_CHUNK_ITEMS = 64

# Ray's minimum for a cluster that mmcalib starts; chunks need a tenth of it.
_STORE_BYTES = 80 << 20


class RayExecutor(Closing):
    """Runs chunks as Ray tasks, which Ray repeats elsewhere if it loses a worker or node.

    The first chunk connects: to the Ray already initialised in this process (which stays so), else
    `RAY_ADDRESS`, this machine's `ray start`, or a new local cluster. `workers` limits the chunks
    per node (default: one per CPU). Items time out and fail as in `LocalPool`. Nodes must be able
    to import `look`.
    """

    def __init__(
        self, look: ProbeFunction, *, workers: int | None = None, timeout_s: float = TIMEOUT_S
    ) -> None:
        # mmcalib also runs without a network, so Ray must not send statistics unless you set this.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        self._ray = import_optional("ray", "ray")
        self._options = look, timeout_s, allowed_hosts()
        self._workers = workers
        self._task: Any = None
        self._ours = False
        self._under_way: set[Any] = set()
        self.chunks_ahead, self.chunk_items = 0, _CHUNK_ITEMS

    def submit(self, orders: Sequence[ProbeTask]) -> Callable[[], list[ProbeResult]]:
        """Raises MmcalibError if no cluster can be reached."""
        if self._task is None:
            self._connect()
        reference = self._task.remote(list(orders), *self._options)
        self._under_way.add(reference)
        return partial(self._result, reference)

    def _result(self, reference: Any) -> list[ProbeResult]:
        """Raises MmcalibError if the task failed, CorpusError if a node cannot see the files."""
        answers: list[ProbeResult]
        try:
            answers, node, unseen = self._ray.get(reference)
        except self._ray.exceptions.RayError as error:
            in_the_task = isinstance(error, self._ray.exceptions.RayTaskError)
            if in_the_task and isinstance(error.cause, MmcalibError):
                raise error.cause from error
            raise MmcalibError(
                f"a task on the Ray cluster failed: {_last_line(error)}",
                hint="pip install the same mmcalib on every node"
                if in_the_task
                else "run it again when the cluster is healthy: finished items are cached",
            ) from error
        self._under_way.discard(reference)
        for path in unseen:
            if os.path.lexists(path):
                raise CorpusError(
                    f"Ray node {node} cannot see {path}",
                    hint="mount the corpus on every node at the same path, or use --executor local",
                )
        return answers

    def close(self) -> None:
        """If others initialised Ray, nodes keep idle processes until that Ray ends."""
        if self._ours:
            self._ours = False
            self._ray.shutdown()
            self._under_way.clear()
        for reference in self._under_way:
            with contextlib.suppress(Exception):  # the task or its node may have ended
                self._ray.cancel(reference, force=True)
        self._under_way.clear()

    def _connect(self) -> None:
        if not self._ray.is_initialized():
            self._ours = True
            _initialise(self._ray, os.environ.get("RAY_ADDRESS") or "")
        alive = (node["Resources"] for node in self._ray.nodes() if node["Alive"])
        cpus = [number for one in alive if (number := int(one.get("CPU", 0)))]
        if not cpus:
            raise MmcalibError(
                "no node of the Ray cluster has a free CPU",
                hint="ray status shows the cluster's resources",
            )
        share = _share(cpus, self._workers)
        self.chunks_ahead = 2 * sum(int(number / share) for number in cpus)
        environment = dict(SAFE)
        root = Path(__file__).resolve().parents[2]
        if root.name not in ("site-packages", "dist-packages"):
            # mmcalib runs from a checkout: put it before the node's own path. The "/" keeps an
            # unset path from becoming an empty entry, which Python reads as the working folder.
            environment["PYTHONPATH"] = f"{root}:/${{PYTHONPATH}}"
        self._task = self._ray.remote(probe_chunk).options(
            name="mmcalib",
            num_cpus=share,
            max_retries=-1,
            scheduling_strategy="SPREAD",
            runtime_env={"env_vars": environment},
        )


def _initialise(ray: Any, address: str) -> None:
    """Connect without Ray's output, and without its minutes of waiting for a silent cluster."""
    if not address:
        # With "auto", Ray finds the cluster's token itself. But without the check it would also
        # take a cluster that another process started for itself and that ends with it.
        started = _started_address()
        address = "auto" if started and _check_cluster(started) in ("", _TOKEN) else "local"
    elif address != "local" and "://" not in address and (why := _check_cluster(address)):
        raise _unreachable(address, why)
    options = {"object_store_memory": _STORE_BYTES, "include_dashboard": False}
    try:
        # Ray's workers import first from where Ray starts. Its warnings repeat the error.
        with contextlib.chdir("/"), warnings.catch_warnings(action="ignore"):
            ray.init(
                address=address,
                log_to_driver=False,
                logging_level=logging.CRITICAL,
                **(options if address == "local" else {}),
            )
    except (Exception, SystemExit) as error:  # Ray raises many types
        raise _unreachable(address, _last_line(error)) from error


def _started_address() -> str:
    """Return the address that this machine's last `ray start` recorded; empty if none."""
    # Follows Ray's get_default_system_temp_dir and get_ray_address_file.
    folder = os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp"  # noqa: S108
    try:
        return Path(folder, "ray", "ray_current_cluster").read_text().strip()
    except OSError:
        return ""


def _check_cluster(address: str) -> str:
    """Return why a cluster cannot be used, or empty; runs Ray's command, which can be killed."""
    command = ["-m", "ray.scripts.scripts", "health-check", "--address", address]
    try:
        ended = subprocess.run(
            [sys.executable, "-P", *command],
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
        hint="check it with ray status --address ADDRESS; the default port is 6379",
    )


def _share(cpus: Sequence[int], workers: int | None) -> float:
    """CPUs per chunk, so that at most `workers` chunks fill the largest node, while the smallest
    node can still run one. Ray requires a whole number above 1.
    """
    if workers is None:
        return 1.0
    share = max(cpus) / workers
    return share if share <= 1 else float(min(math.ceil(share), min(cpus)))


def _last_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[-1].strip() if lines else type(error).__name__
