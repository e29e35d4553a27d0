"""Probe many items in order: take known results from the cache, and the rest from an executor."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from mmcalib.census.cache import Cache, CacheBroken
from mmcalib.census.executor import Executor, ProbeResult, ProbeTask
from mmcalib.domain.items import Item
from mmcalib.progress import Progress, Silent
from mmcalib.storage.location import item_version

T = TypeVar("T")


class _Batch(NamedTuple):
    """Orders, their cached lines, and the ticket of those that an executor probes."""

    orders: Sequence[ProbeTask]
    known: list[str | None]
    ticket: Any | None


@dataclass(slots=True)
class Prober:
    """Probes items. Decodes the first `whole` items completely too."""

    executor: Executor[Any]
    cache: Cache | None = None
    whole: int = 0
    progress: Progress = field(default_factory=Silent)

    def probe_batches(
        self, batches: Iterable[tuple[T, Sequence[Item]]]
    ) -> Iterator[tuple[T, list[str]]]:
        """Yield each batch's tag and a line per item, in order. Raises MmcalibError."""
        under_way: deque[tuple[T, _Batch]] = deque()
        for tag, items in batches:
            under_way.append((tag, self._begin(items)))
            while under_way and (
                under_way[0][1].ticket is None or len(under_way) > self.executor.chunks_ahead
            ):
                tag, batch = under_way.popleft()
                yield tag, self._end(batch)
        for tag, batch in under_way:
            yield tag, self._end(batch)

    def close(self) -> None:
        self.executor.close()
        with self._dropping_broken_cache():
            if self.cache is not None:
                self.cache.close()
        self.cache = None

    def _begin(self, items: Sequence[Item]) -> _Batch:
        whole = min(self.whole, len(items))
        self.whole -= whole
        orders = [
            ProbeTask(item, n < whole, item_version(item) if self.cache else None)
            for n, item in enumerate(items)
        ]
        known: list[str | None] = [None] * len(orders)
        with self._dropping_broken_cache():
            if self.cache is not None:
                known = self.cache.find(orders)
        if None not in known:
            return _Batch(orders, known, None)
        missing = [order for order, line in zip(orders, known, strict=True) if line is None]
        return _Batch(orders, known, self.executor.submit(missing))

    def _end(self, batch: _Batch) -> list[str]:
        orders, known, ticket = batch
        if ticket is None:
            return [line for line in known if line is not None]
        answers = iter(self.executor.result(ticket))
        lines: list[str] = []
        fresh: list[tuple[ProbeTask, ProbeResult]] = []
        for order, line in zip(orders, known, strict=True):
            if line is None:
                answer = next(answers)
                fresh.append((order, answer))
                line = answer.line
            lines.append(line)
        with self._dropping_broken_cache():
            if self.cache is not None:
                self.cache.store(fresh)
        return lines

    @contextmanager
    def _dropping_broken_cache(self) -> Iterator[None]:
        try:
            yield
        except CacheBroken as error:
            self.cache = None
            self.progress.note(f"the cache of probed files is off: {error}")
