"""Who looks at a corpus, and what is remembered of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mmcalib.census.cache import Cache, CacheBroken
from mmcalib.census.executors.executor import Executor, Named
from mmcalib.census.executors.local import LocalPool
from mmcalib.census.prober import Prober
from mmcalib.corpus.apart import end_readers
from mmcalib.options.probe import ProbeOptions
from mmcalib.progress import Progress

CACHE = "census.sqlite3"

# Media libraries take a quarter of a second to import, which a remembered corpus does not need.
_PROBE = Named("mmcalib.media.probe", "examine")


@contextmanager
def probing(
    how: ProbeOptions, folder: Path, progress: Progress, whole: int = 0
) -> Iterator[Prober]:
    """Looks at items, the first `whole` decoded to their end; remembers them below `folder`."""
    cache = None
    if not how.no_cache:
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


def _executor(how: ProbeOptions) -> Executor[Any]:
    if how.executor == "ray":
        from mmcalib.census.executors.ray import RayExecutor

        return RayExecutor(_PROBE, workers=how.workers, timeout_s=how.item_timeout_s)
    return LocalPool(_PROBE, workers=how.workers, timeout_s=how.item_timeout_s)
