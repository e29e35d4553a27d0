"""Who looks at a corpus, and what is remembered of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from mmcalib.census.cache import Cache, CacheBroken
from mmcalib.census.executors.executor import Executor, Named
from mmcalib.census.executors.local import TIMEOUT_S, LocalPool
from mmcalib.census.prober import Prober
from mmcalib.corpus.apart import end_readers
from mmcalib.progress import Progress

Where = Literal["local", "ray"]
EXECUTORS: tuple[Where, ...] = ("local", "ray")

CACHE = "census.sqlite3"

# Media libraries take a quarter of a second to import, which a remembered corpus does not need.
_PROBE = Named("mmcalib.media.probe", "examine")


@dataclass(frozen=True, slots=True)
class ProbeOptions:
    """`workers` processes here, or on every node of a Ray cluster (default: one per CPU); what they
    see is `remembered` below the cache folder.
    """

    executor: Where = "local"
    workers: int | None = None
    timeout_s: float = TIMEOUT_S
    ray_address: str | None = None
    remembered: bool = True


DEFAULT = ProbeOptions()


@contextmanager
def probing(
    how: ProbeOptions, folder: Path, progress: Progress, whole: int = 0
) -> Iterator[Prober]:
    """Looks at items, the first `whole` decoded to their end; remembers them below `folder`."""
    cache = None
    if how.remembered:
        try:
            cache = Cache(folder / CACHE)
        except CacheBroken as error:
            progress.note(f"nothing is remembered of this corpus: {error}")
    prober = Prober(_executor(how), cache, whole, progress)
    try:
        yield prober
    finally:
        prober.close()
        end_readers()


def _executor(how: ProbeOptions) -> Executor:
    if how.executor == "ray":
        from mmcalib.census.executors.ray import RayExecutor

        return RayExecutor(
            _PROBE, address=how.ray_address, workers=how.workers, timeout_s=how.timeout_s
        )
    return LocalPool(_PROBE, workers=how.workers, timeout_s=how.timeout_s)
