"""Taking the census: sources in, shapes counted, what cannot be read listed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from mmcalib.census.accesses import Accesses, AccessLog
from mmcalib.census.census import Census
from mmcalib.census.prompts import PromptCensus
from mmcalib.census.shapes import Shape
from mmcalib.corpus.item import Item, Prompt, Skipped
from mmcalib.corpus.source import Source
from mmcalib.corpus.wording import one_line
from mmcalib.errors import CorpusError
from mmcalib.media.probe import probe
from mmcalib.progress import Progress, Silent, Task

Look = Callable[[Item], Shape | Skipped]


@dataclass(frozen=True, slots=True)
class Taken:
    """A corpus after one reading of its headers; `files` are the distinct paths looked at."""

    census: Census
    prompts: PromptCensus
    skipped: list[Skipped]
    files: int
    accesses: Accesses


def take(
    sources: Iterable[Source],
    *,
    look: Look = probe,
    progress: Progress | None = None,
    allow_empty: bool = False,
) -> Taken:
    """Look at every file once and count; `look` gives its shape or says why it has none.

    An item counts once per mention in a usable prompt, so that traffic weighs. Every other file
    counts once: files in folders that no usable prompt mentions (by path or by link), and good
    files that only unusable prompts mention. A prompt with an unreadable item is skipped as a
    whole. Each path and each prompt is listed as skipped once, in the order of the sources,
    prompts first. Memory grows with the number of distinct paths, and by a few bytes for each
    mention.

    Raises CorpusError when nothing at all could be counted, unless `allow_empty` (for shards).
    """
    sources = list(sources)
    with (progress or Silent()).step("reading the corpus") as task:
        counter = _Counter(task, look)
        for source in sources:
            for prompt in source.prompts():
                counter.prompt(prompt)
        for source in sources:
            for item in source.items():
                counter.item(item)
    if not allow_empty and not counter.census.items():
        raise _nothing(counter)
    accesses = counter.log.accesses(progress)
    skipped = list(counter.skipped.values())
    return Taken(counter.census, counter.prompts, skipped, len(counter.looked_at), accesses)


@dataclass(slots=True)
class _Counter:
    task: Task
    look: Look
    census: Census = field(default_factory=Census)
    prompts: PromptCensus = field(default_factory=PromptCensus)
    log: AccessLog = field(default_factory=AccessLog)
    skipped: dict[str, Skipped] = field(default_factory=dict)
    # Only what requests name can come again; a folder's items are not remembered with their shape.
    probed: dict[Item, Shape | Skipped] = field(default_factory=dict)
    looked_at: set[str] = field(default_factory=set)
    settled: set[str] = field(default_factory=set)
    mentioned: set[tuple[int, int]] = field(default_factory=set)

    def prompt(self, prompt: Prompt | Skipped) -> None:
        if isinstance(prompt, Skipped):
            self.skip(prompt)
            return
        shapes: list[Shape] = []
        for item in prompt.items:
            shape = self.shape(item)
            if isinstance(shape, Skipped):
                reason = f"names an unreadable item: {shape.path}: {shape.reason}"
                self.skip(Skipped(prompt.origin, one_line(reason)))
                return
            shapes.append(shape)
        self.prompts.add(shapes, prompt)
        self.log.add(prompt.items, shapes)
        for item, shape in zip(prompt.items, shapes, strict=True):
            self.census.add(shape, item.path)
            if item.path not in self.settled:
                self.settled.add(item.path)
                self.mentioned.update(_identity(item.path))

    def item(self, item: Item | Skipped) -> None:
        if isinstance(item, Skipped):
            self.looked_at.add(item.path)
            self.skip(item)
        elif item.path not in self.settled and not self.is_mentioned(item.path):
            shape = self.shape(item)
            if not isinstance(shape, Skipped):
                self.census.add(shape, item.path)
            elif item.declared is not None:
                return  # it may come again undeclared, from a folder, and be fine
            self.settled.add(item.path)

    def shape(self, item: Item) -> Shape | Skipped:
        if item in self.probed:
            return self.probed[item]
        shape = self.look(item)
        self.task.advance()
        self.looked_at.add(item.path)
        if isinstance(shape, Skipped):
            self.skip(shape)
        if item.declared is not None:
            self.probed[item] = shape
        return shape

    def skip(self, skipped: Skipped) -> None:
        self.skipped.setdefault(skipped.path, skipped)

    def is_mentioned(self, path: str) -> bool:
        return bool(self.mentioned) and not self.mentioned.isdisjoint(_identity(path))


def _identity(path: str) -> list[tuple[int, int]]:
    """Device and inode, equal for all links to a file; nothing when it is gone."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return []
    return [(status.st_dev, status.st_ino)]


def _nothing(counter: _Counter) -> CorpusError:
    first = next(iter(counter.skipped.values()), None)
    why = f"; {one_line(first.path)}: {first.reason}" if first else ""
    return CorpusError(
        f"nothing to measure: no image, video or audio in {len(counter.looked_at)} files{why}",
        hint="--data DIR names a folder of media files",
    )
