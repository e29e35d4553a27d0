"""Probe a corpus, and count its items, prompts, skipped files and accesses."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import NamedTuple, TypeVar

from mmcalib.census.accesses import Accesses, AccessLog, find_first_equal
from mmcalib.census.cache import Cache, CacheBroken
from mmcalib.census.census import Census
from mmcalib.census.executor import Executor, ProbeResult, ProbeTask
from mmcalib.census.prompts import PromptCensus
from mmcalib.corpus.chat import Prompt, Source
from mmcalib.domain.items import Item, Skipped, decode_line, drop_data, loaded_bytes
from mmcalib.domain.shapes import EncodedItem, as_encoded_item, is_size
from mmcalib.errors import CorpusError, MmcalibError
from mmcalib.files import Scratch
from mmcalib.media.sniff import EXTENSIONS, extension_of
from mmcalib.progress import Progress, Silent
from mmcalib.storage.location import item_version
from mmcalib.storage.tables import row_of
from mmcalib.text import one_line

T = TypeVar("T")


class _Batch(NamedTuple):
    """Cached lines, the orders for the others, and what waits for their results, if any."""

    known: list[str | None]
    missing: Sequence[ProbeTask]
    wait: Callable[[], list[ProbeResult]] | None


@dataclass(slots=True)
class Prober:
    """Probes items. Decodes the first `whole` items completely too."""

    executor: Executor
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
                under_way[0][1].wait is None or len(under_way) > self.executor.chunks_ahead
            ):
                tag, batch = under_way.popleft()
                yield tag, self._end(batch)
        for tag, batch in under_way:
            yield tag, self._end(batch)

    def close(self) -> None:
        self.executor.close()
        self._ask_cache(Cache.close)
        self.cache = None

    def _begin(self, items: Sequence[Item]) -> _Batch:
        whole = min(self.whole, len(items))
        self.whole -= whole
        orders = [
            ProbeTask(item, n < whole, item_version(item) if self.cache else None)
            for n, item in enumerate(items)
        ]
        known = self._ask_cache(lambda cache: cache.find(orders)) or [None] * len(orders)
        missing = [order for order, line in zip(orders, known, strict=True) if line is None]
        return _Batch(known, missing, self.executor.submit(missing) if missing else None)

    def _end(self, batch: _Batch) -> list[str]:
        results = batch.wait() if batch.wait else []
        self._ask_cache(lambda cache: cache.store(zip(batch.missing, results, strict=True)))
        lines = (result.line for result in results)
        return [next(lines) if line is None else line for line in batch.known]

    def _ask_cache(self, ask: Callable[[Cache], T]) -> T | None:
        """Return the cache's answer; None without a cache, and from now on if it is broken."""
        try:
            return ask(self.cache) if self.cache is not None else None
        except CacheBroken as error:
            self.cache = None
            self.progress.note(f"the cache of probed files is off: {error}")
            return None


_Known = EncodedItem | Skipped


@lru_cache(maxsize=1 << 14)
def _decode(line: str) -> _Known:
    """Decode a probe's line, but for the path of a `Skipped`. Equal lines share one object."""
    seen = decode_line("", line)
    return seen if isinstance(seen, Skipped) else as_encoded_item(seen)


# Device and inode, equal for all links to a file; the path when it is gone.
_Identity = tuple[int, int] | str


@dataclass(slots=True)
class CorpusCounter:
    """Counts all prompts, then all items (see `count_corpus`), and keeps paths as 64-bit hashes."""

    log: AccessLog | None
    # The counted items, if distinct contents are to be counted too.
    contents: dict[Item, None] | None = None
    census: Census = field(default_factory=Census)
    prompts: PromptCensus = field(default_factory=PromptCensus)
    skipped: dict[str, Skipped] = field(default_factory=dict)
    # Items named by prompts, which may occur again.
    known: dict[Item, _Known | None] = field(default_factory=dict)
    paths: set[int] = field(default_factory=set)
    # The paths that only had the modality that a request declared.
    declared: set[int] = field(default_factory=set)
    # Counted, or mentioned by a usable prompt.
    settled: set[int] = field(default_factory=set)
    mentioned: set[_Identity] = field(default_factory=set)

    def add_new_items(self, items: Iterable[Item]) -> list[Item]:
        """Return a prompt's items that no earlier prompt had."""
        new = [item for item in dict.fromkeys(items) if item not in self.known]
        self.known.update(dict.fromkeys(map(drop_data, new)))
        return new

    def add_prompts(
        self, prompts: Iterable[Prompt | Skipped], items: Sequence[Item], lines: Sequence[str]
    ) -> None:
        """Add a group of prompts, and the probe's lines for their `add_new_items` items."""
        for item, line in zip(items, lines, strict=True):
            self.known[item] = self._decode_line(item, line)
        for prompt in prompts:
            self._add_prompt(prompt)

    def is_new(self, item: Item) -> bool:
        """True if the item must be probed, because its path was not probed before."""
        path = hash(item.path)
        first = path not in self.paths
        self.paths.add(path)
        # A usable prompt may name the same file differently.
        if self.known and (
            path in self.settled or (self.mentioned and _identity(item.path) in self.mentioned)
        ):
            self._settle(item.path)
            return False
        if item.declared is None:
            again = not first and path not in self.declared
            self.declared.discard(path)
            return not again
        if first:
            self.declared.add(path)
        seen = self.known.get(item)
        if seen is None:
            return True
        self._add_item(item, seen)
        return False

    def add_items(self, items: Sequence[Item], lines: Sequence[str]) -> None:
        """Add items for which `is_new` was true."""
        for item, line in zip(items, lines, strict=True):
            self._add_item(item, self._decode_line(item, line))

    def _add_item(self, item: Item, seen: _Known) -> None:
        path = hash(item.path)
        if isinstance(seen, Skipped) or path in self.settled:
            return
        self.census.add(seen.shape, item.path, encoding=seen.encoding)
        if self.contents is not None:
            self.contents[drop_data(item)] = None
        if self.known:  # else no path comes twice
            self._settle(item.path)

    def _add_prompt(self, prompt: Prompt | Skipped) -> None:
        if isinstance(prompt, Skipped):
            self.skip(prompt)
            return
        if any(map(loaded_bytes, prompt.items)):
            prompt = replace(prompt, items=tuple(map(drop_data, prompt.items)))
        files: list[EncodedItem] = []
        for item in prompt.items:
            seen = self.known[item]
            assert seen is not None
            if isinstance(seen, Skipped):
                if row_of(seen.path) == prompt.origin:
                    return  # as an item, the row is listed already
                reason = f"unreadable item: {seen.path}: {seen.reason}"
                self.skip(Skipped(prompt.origin, one_line(reason)))
                return
            files.append(seen)
        shapes = [file.shape for file in files]
        self.prompts.add(shapes, prompt, files)
        if self.log:
            self.log.add(prompt, shapes)
        for item, file in zip(prompt.items, files, strict=True):
            self.census.add(file.shape, item.path, encoding=file.encoding)
            if self.contents is not None:
                self.contents[drop_data(item)] = None
            if hash(item.path) not in self.settled:
                self._settle(item.path)
                self.mentioned.add(_identity(item.path))
                # A changed archive may no longer have it when its items are read.
                self.paths.add(hash(item.path))

    def _decode_line(self, item: Item, line: str) -> _Known:
        seen = _decode(line)
        if isinstance(seen, Skipped):
            seen = Skipped(item.path, seen.reason)
            if hash(item.path) not in self.settled:
                self.skip(seen)
        return seen

    def _settle(self, path: str) -> None:
        """Unskip a file that one prompt declares wrongly and another correctly."""
        self.settled.add(hash(path))
        self.skipped.pop(path, None)

    def skip(self, skipped: Skipped) -> None:
        """Keep the alphabetically first reason, so that the order of files does not matter."""
        known = self.skipped.setdefault(skipped.path, skipped)
        if skipped.reason < known.reason:
            self.skipped[skipped.path] = skipped


def _identity(path: str) -> _Identity:
    if is_size(path):
        return path
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return path
    return status.st_dev, status.st_ino


# A group closes at this many carried bytes; two groups per worker are in memory.
_FULL_BYTES = 16 << 20

# If fewer files of a kind fail, they may simply all be damaged.
_MIN_FAILURES = 3


@dataclass(frozen=True, slots=True)
class CorpusCount:
    """A corpus after one pass over its headers; `files` counts its distinct paths, and `distinct`
    its items of different content, with `repeats`. `known` has what requests name.
    """

    census: Census
    prompts: PromptCensus
    skipped: Sequence[Skipped]
    files: int
    accesses: Accesses = field(default_factory=Accesses)
    distinct: int | None = None
    known: Mapping[Item, EncodedItem | Skipped | None] = field(default_factory=dict)


def count_corpus(
    sources: Iterable[Source], prober: Prober, *, in_order: bool = True, repeats: bool = False
) -> CorpusCount:
    """Probe every file once with `prober`, and count.

    An item counts once per mention in a usable prompt, as in traffic; every other good file counts
    once. A prompt with an unreadable item is skipped whole. Each skipped prompt and path is listed
    once, in source order, prompts first. Takes about 100 bytes of memory per distinct path (less
    for a single folder), and a few per mention.

    `accesses` are empty unless `in_order`; they and `repeats` may read whole files. Raises
    CorpusError if nothing could be counted.
    """
    sources = list(sources)
    contents: dict[Item, None] | None = {} if repeats else None
    counter = CorpusCounter(AccessLog() if in_order else None, contents)
    progress = prober.progress
    with progress.step("reading the corpus") as task:
        for source in sources:
            groups = _group(_read_prompts(counter, source), prober.executor)
            for (prompts, items), lines in prober.probe_batches(groups):
                counter.add_prompts(prompts, items, lines)
                task.advance(len(lines))
        for source in sources:
            new = _group(_read_new_items(counter, source), prober.executor)
            for (items, _), lines in prober.probe_batches(new):
                counter.add_items(items, lines)
                task.advance(len(lines))
    _check_libraries(counter)
    files = len(counter.paths)
    if not counter.census.items():
        first = next(iter(counter.skipped.values()), None)
        why = f"; {one_line(first.path)}: {first.reason}" if first else ""
        may_be = bool(first and first.path.endswith((".jsonl", ".json")))
        raise CorpusError(
            f"nothing to measure: no image, video or audio in {files} files{why}",
            hint=f"pass a folder of media files with --data DIR{', or --requests FILE' * may_be}",
        )
    accesses = counter.log.accesses(progress) if counter.log else Accesses()
    skipped = list(counter.skipped.values())
    distinct = None if contents is None else len(set(find_first_equal(list(contents), progress)))
    known = counter.known
    return CorpusCount(counter.census, counter.prompts, skipped, files, accesses, distinct, known)


# A prompt or item, its items to probe, and the bytes that they carry.
_Read = tuple[T, list[Item], int]


def _read_prompts(counter: CorpusCounter, source: Source) -> Iterator[_Read[Prompt | Skipped]]:
    for prompt in source.prompts():
        items = () if isinstance(prompt, Skipped) else prompt.items
        yield prompt, counter.add_new_items(items), sum(map(loaded_bytes, items))


def _read_new_items(counter: CorpusCounter, source: Source) -> Iterator[_Read[Item]]:
    for item in source.items():
        if isinstance(item, Skipped):
            counter.paths.add(hash(item.path))
            counter.skip(item)
        elif counter.is_new(item):
            yield item, [item], loaded_bytes(item)


def _group(
    entries: Iterable[_Read[T]], executor: Executor
) -> Iterator[tuple[tuple[list[T], list[Item]], list[Item]]]:
    group: list[T] = []
    items: list[Item] = []
    carried = 0
    for one, new, size_bytes in entries:
        group.append(one)
        items += new
        carried += size_bytes
        if max(len(items), len(group)) >= executor.chunk_items or carried >= _FULL_BYTES:
            yield (group, items), items
            group, items, carried = [], [], 0
    yield (group, items), items


def _check_libraries(counter: CorpusCounter) -> None:
    """Raises MmcalibError if all files of a kind fail, and mmcalib's own file of that kind too."""
    present = counter.census.modalities()
    for modality, endings in EXTENSIONS.items():
        failed = [s for s in counter.skipped.values() if extension_of(s.path) in endings]
        one_reason = len({skipped.reason for skipped in failed}) == 1
        if not one_reason or len(failed) < _MIN_FAILURES or modality in present:
            continue
        from mmcalib.media.decode import check_library

        with Scratch() as scratch:
            why = check_library(modality, scratch.path)
        if why:
            fails = f"cannot read {modality}: all {len(failed):,} files fail"
            raise MmcalibError(
                one_line(f"{fails}, and a test file written by mmcalib fails too: {why}"),
                hint="mmcalib doctor names the broken library and its fix",
            )
