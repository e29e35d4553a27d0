"""Probing many items: what is known from before, what others must look at, and the order."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from mmcalib.census.cache import Cache, CacheBroken
from mmcalib.census.executor import Executor, ProbeResult, ProbeTask
from mmcalib.domain.items import Item
from mmcalib.progress import Progress, Silent
from mmcalib.storage.location import version

T = TypeVar("T")


@dataclass(slots=True)
class _Batch:
    """Orders, what is known of them, and who looks at the rest."""

    orders: Sequence[ProbeTask]
    known: list[str | None]
    ticket: Any | None


@dataclass(slots=True)
class Prober:
    """Says what items are. The first `whole` are decoded too, in the order that they come."""

    executor: Executor[Any]
    cache: Cache | None = None
    whole: int = 0
    progress: Progress = field(default_factory=Silent)

    def each(self, batches: Iterable[tuple[T, Sequence[Item]]]) -> Iterator[tuple[T, list[str]]]:
        """Per batch, in order, what it came with and a line (`domain.seen`) per item.

        Batches are taken ahead of the answers. Raises MmcalibError where nothing can be looked at.
        """
        under_way: deque[tuple[T, _Batch]] = deque()
        for given, items in batches:
            under_way.append((given, self._begin(items)))
            while under_way and (
                under_way[0][1].ticket is None or len(under_way) > self.executor.ahead
            ):
                given, batch = under_way.popleft()
                yield given, self._end(batch)
        for given, batch in under_way:
            yield given, self._end(batch)

    def close(self) -> None:
        """Write what was seen, and end what was started."""
        self.executor.close()
        cache, self.cache = self.cache, None
        if cache is not None:
            try:
                cache.close()
            except CacheBroken as error:
                self._note(error)

    def _begin(self, items: Sequence[Item]) -> _Batch:
        whole = min(self.whole, len(items))
        self.whole -= whole
        remembers = self.cache is not None
        orders = [
            ProbeTask(item, n < whole, version(item) if remembers else None)
            for n, item in enumerate(items)
        ]
        known = self._find(orders)
        if None not in known:
            return _Batch(orders, known, None)
        missing = [order for order, line in zip(orders, known, strict=True) if line is None]
        return _Batch(orders, known, self.executor.submit(missing))

    def _end(self, batch: _Batch) -> list[str]:
        if batch.ticket is None:
            return [line for line in batch.known if line is not None]
        answers = iter(self.executor.result(batch.ticket))
        lines: list[str] = []
        fresh: list[tuple[ProbeTask, ProbeResult]] = []
        for order, line in zip(batch.orders, batch.known, strict=True):
            if line is None:
                answer = next(answers)
                fresh.append((order, answer))
                line = answer.line
            lines.append(line)
        self._keep(fresh)
        return lines

    def _find(self, orders: Sequence[ProbeTask]) -> list[str | None]:
        if self.cache is not None:
            try:
                return self.cache.find(orders)
            except CacheBroken as error:
                self._give_up(error)
        return [None] * len(orders)

    def _keep(self, fresh: Iterable[tuple[ProbeTask, ProbeResult]]) -> None:
        if self.cache is not None:
            try:
                self.cache.keep(fresh)
            except CacheBroken as error:
                self._give_up(error)

    def _give_up(self, error: CacheBroken) -> None:
        self.cache = None
        self._note(error)

    def _note(self, error: CacheBroken) -> None:
        self.progress.note(f"not remembered for another time: {error}")
