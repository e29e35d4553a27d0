"""Counting what was seen: each mention, each file, and never one twice."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from mmcalib.census.accesses import AccessLog
from mmcalib.census.census import Census
from mmcalib.census.contents import Contents
from mmcalib.census.prober import Prober
from mmcalib.census.prompts import PromptCensus
from mmcalib.domain.encoding import Encoded, encoded
from mmcalib.domain.items import Item, Prompt, Skipped, carried_bytes, without_data
from mmcalib.domain.seen import decode
from mmcalib.wording import one_line

# What is known of an item once it was looked at.
_Known = Encoded | Skipped

# Lines of which it is remembered what they say.
_KNOWN_LINES = 1 << 14

# Device and inode, equal for all links to a file; the path when it is gone.
_Identity = tuple[int, int] | str


@dataclass(slots=True)
class CorpusCounter:
    """First all prompts are counted, then all items; see `count_corpus` for what counts how often.

    Paths that may come again are remembered by their hashes, of 64 bits.
    """

    prober: Prober
    log: AccessLog | None
    contents: Contents | None = None
    census: Census = field(default_factory=Census)
    prompts: PromptCensus = field(default_factory=PromptCensus)
    skipped: dict[str, Skipped] = field(default_factory=dict)
    encoded: dict[str, Encoded] = field(default_factory=dict)
    # What prompts name, which can come again.
    known: dict[Item, _Known | None] = field(default_factory=dict)
    paths: set[int] = field(default_factory=set)
    # Of these, the ones that were listed only as what a request declared them to be.
    declared: set[int] = field(default_factory=set)
    # Counted, or mentioned by a usable prompt.
    settled: set[int] = field(default_factory=set)
    mentioned: set[_Identity] = field(default_factory=set)

    @property
    def files(self) -> int:
        """How many distinct paths were listed."""
        return len(self.paths)

    def unseen(self, prompt: Prompt | Skipped) -> list[Item]:
        """Items of a prompt that were not asked for before."""
        if isinstance(prompt, Skipped):
            return []
        new = [item for item in dict.fromkeys(prompt.items) if item not in self.known]
        self.known.update(dict.fromkeys(map(without_data, new)))
        return new

    def prompts_seen(
        self, group: tuple[list[Prompt | Skipped], list[Item]], lines: Sequence[str]
    ) -> None:
        """A group of prompts, and what was seen of those of their items that were `unseen`."""
        prompts, items = group
        for item, line in zip(items, lines, strict=True):
            self.known[item] = self._noted(item, line)
        for prompt in prompts:
            self._prompt(prompt)

    def listed(self, skipped: Skipped) -> None:
        """A path that cannot be an item."""
        self.paths.add(hash(skipped.path))
        self._skip(skipped)

    def is_new(self, item: Item) -> bool:
        """Whether it must be looked at: what it is was not asked yet."""
        path = hash(item.path)
        first = path not in self.paths
        self.paths.add(path)
        if self.known and (path in self.settled or self._is_mentioned(item.path)):
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
        self._item(item, seen)
        return False

    def items_seen(self, items: Sequence[Item], lines: Sequence[str]) -> None:
        """Files that were `is_new`."""
        for item, line in zip(items, lines, strict=True):
            self._item(item, self._noted(item, line))

    def _item(self, item: Item, seen: _Known) -> None:
        path = hash(item.path)
        if isinstance(seen, Skipped) or path in self.settled:
            return
        self.census.add(seen.shape, item.path, encoding=seen.encoding)
        if self.contents:
            self.contents.add(item)
        if self.known:  # else no path comes twice
            self.settled.add(path)
            self.skipped.pop(item.path, None)

    def _prompt(self, prompt: Prompt | Skipped) -> None:
        if isinstance(prompt, Skipped):
            self._skip(prompt)
            return
        if any(map(carried_bytes, prompt.items)):
            prompt = replace(prompt, items=tuple(map(without_data, prompt.items)))
        found: list[Encoded] = []
        for item in prompt.items:
            seen = self.known[item]
            assert seen is not None
            if isinstance(seen, Skipped):
                reason = f"names an unreadable item: {seen.path}: {seen.reason}"
                self._skip(Skipped(prompt.origin, one_line(reason)))
                return
            found.append(seen)
        shapes = [file.shape for file in found]
        self.prompts.add(shapes, prompt)
        if self.log:
            self.log.add(prompt, shapes)
        for item, file in zip(prompt.items, found, strict=True):
            self.census.add(file.shape, item.path, encoding=file.encoding)
            if self.contents:
                self.contents.add(item)
            if hash(item.path) not in self.settled:
                self._settle(item.path)
                self.mentioned.add(_identity(item))
                # An archive may have lost it before its items come.
                self.paths.add(hash(item.path))

    def _noted(self, item: Item, line: str) -> _Known:
        if found := self.encoded.get(line):
            return found
        seen = decode(item.path, line)
        if not isinstance(seen, Skipped):
            if len(self.encoded) >= _KNOWN_LINES:
                self.encoded.clear()
            found = self.encoded[line] = encoded(seen)
            return found
        if hash(item.path) not in self.settled:
            self._skip(seen)
        return seen

    def _settle(self, path: str) -> None:
        """One prompt may declare a file wrongly, and another rightly: then it is not skipped."""
        self.settled.add(hash(path))
        self.skipped.pop(path, None)

    def _skip(self, skipped: Skipped) -> None:
        """Of several reasons the first in the alphabet, so that the order does not matter."""
        known = self.skipped.setdefault(skipped.path, skipped)
        if skipped.reason < known.reason:
            self.skipped[skipped.path] = skipped

    def _is_mentioned(self, path: str) -> bool:
        """Whether a usable prompt has this file by any of its names."""
        return bool(self.mentioned) and _identity(Item(path)) in self.mentioned


def _identity(item: Item) -> _Identity:
    try:
        status = os.stat(item.path)
    except (OSError, ValueError):
        return item.path
    return status.st_dev, status.st_ino
