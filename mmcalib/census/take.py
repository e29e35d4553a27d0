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
from mmcalib.corpus.shard import Part
from mmcalib.corpus.source import Source
from mmcalib.corpus.wording import one_line
from mmcalib.errors import CorpusError
from mmcalib.media.probe import probe
from mmcalib.progress import Progress, Silent, Task

Look = Callable[[Item], Shape | Skipped]


@dataclass(frozen=True, slots=True)
class Taken:
    """A corpus after one reading of its headers; `files` are the distinct paths in it."""

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
    part: Part | None = None,
    in_order: bool = True,
) -> Taken:
    """Look at every file once and count; `look` gives its shape or says why it has none.

    An item counts once per mention in a usable prompt, so that traffic weighs. Every other file
    counts once: files in folders that no usable prompt mentions (by path or by link), and good
    files that only unusable prompts mention. A prompt with an unreadable item is skipped as a
    whole. Each prompt, and each path that was not counted, is listed as skipped once, in the order
    of the sources, prompts first. Memory grows with the number of distinct paths, and by a few
    bytes for each mention.

    With `part` only its prompts and files are counted and listed, so that the censuses and counts
    of all parts add up to those of the whole. The other prompts are still read, because files that
    they mention do not count; they are looked into where they mention a file of this part, and
    remembered: memory grows with their number.

    `accesses` stay empty unless `in_order`; finding repeats may read whole files. Raises
    CorpusError when nothing at all could be counted, unless only a part was asked for.
    """
    sources = list(sources)
    with (progress or Silent()).step("reading the corpus") as task:
        counter = _Counter(task, look, part, AccessLog() if in_order else None)
        for source in sources:
            for prompt in source.prompts():
                counter.prompt(prompt)
        for source in sources:
            for item in source.items():
                counter.item(item)
    if part is None and not counter.census.items():
        raise _nothing(counter)
    accesses = counter.log.accesses(progress) if counter.log else Accesses()
    skipped = list(counter.skipped.values())
    return Taken(counter.census, counter.prompts, skipped, len(counter.listed), accesses)


# Device and inode, equal for all links to a file; the path when it is gone.
_Identity = tuple[int, int] | str


@dataclass(slots=True)
class _Counter:
    task: Task
    look: Look
    part: Part | None
    log: AccessLog | None
    census: Census = field(default_factory=Census)
    prompts: PromptCensus = field(default_factory=PromptCensus)
    skipped: dict[str, Skipped] = field(default_factory=dict)
    # Only what requests name can come again; a folder's items are not remembered with their shape.
    probed: dict[Item, Shape | Skipped] = field(default_factory=dict)
    listed: set[str] = field(default_factory=set)
    # Counted, or mentioned by a usable prompt.
    settled: set[str] = field(default_factory=set)
    unreadable: set[str] = field(default_factory=set)
    mentioned: set[_Identity] = field(default_factory=set)
    # Per file the prompts of other parts that mention it, until it is known whether one is usable.
    elsewhere: dict[_Identity, list[tuple[Item, ...]]] = field(default_factory=dict)

    def prompt(self, prompt: Prompt | Skipped) -> None:
        if isinstance(prompt, Skipped):
            if self.owns_prompt(prompt.path):
                self.skip(prompt)
            return
        if not self.owns_prompt(prompt.origin):
            for item in prompt.items:
                self.elsewhere.setdefault(_identity(item.path), []).append(prompt.items)
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
        if self.log:
            self.log.add(prompt.items, shapes)
        for item, shape in zip(prompt.items, shapes, strict=True):
            self.census.add(shape, item.path)
            if item.path not in self.settled:
                self.settled.add(item.path)
                self.mentioned.add(_identity(item.path))

    def item(self, item: Item | Skipped) -> None:
        if not self.owns(item.path):
            return
        self.listed.add(item.path)
        if isinstance(item, Skipped):
            self.skip(item)
        elif item.path in self.settled or self.is_mentioned(item.path):
            self.settle(item.path)
        elif item.path not in self.unreadable:
            shape = self.shape(item)
            if not isinstance(shape, Skipped):
                self.census.add(shape, item.path)
                self.settle(item.path)
            elif item.declared is None:
                self.unreadable.add(item.path)  # declared, it may come again and be fine

    def settle(self, path: str) -> None:
        """One prompt may declare a file wrongly, and another rightly: then it is not skipped."""
        self.settled.add(path)
        self.skipped.pop(path, None)

    def shape(self, item: Item) -> Shape | Skipped:
        if item in self.probed:
            return self.probed[item]
        shape = self.look(item)
        self.task.advance()
        if isinstance(shape, Skipped) and self.owns(item.path) and item.path not in self.settled:
            self.skip(shape)
        if item.declared is not None:
            self.probed[item] = shape
        return shape

    def skip(self, skipped: Skipped) -> None:
        """Of several reasons the first in the alphabet, so that the order does not matter."""
        known = self.skipped.setdefault(skipped.path, skipped)
        if skipped.reason < known.reason:
            self.skipped[skipped.path] = skipped

    def owns(self, path: str) -> bool:
        return self.part is None or self.part.owns(path)

    def owns_prompt(self, origin: str) -> bool:
        return self.part is None or self.part.owns_prompt(origin)

    def is_mentioned(self, path: str) -> bool:
        """Whether a usable prompt, of whatever part, has this file by any of its names."""
        if not self.mentioned and not self.elsewhere:
            return False
        identity = _identity(path)
        if identity not in self.mentioned and self.is_used(self.elsewhere.pop(identity, [])):
            self.mentioned.add(identity)
        return identity in self.mentioned

    def is_used(self, prompts: Iterable[tuple[Item, ...]]) -> bool:
        return any(
            not any(isinstance(self.shape(item), Skipped) for item in items) for items in prompts
        )


def _identity(path: str) -> _Identity:
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return path
    return status.st_dev, status.st_ino


def _nothing(counter: _Counter) -> CorpusError:
    first = next(iter(counter.skipped.values()), None)
    why = f"; {one_line(first.path)}: {first.reason}" if first else ""
    return CorpusError(
        f"nothing to measure: no image, video or audio in {len(counter.listed)} files{why}",
        hint="--data DIR names a folder of media files",
    )
