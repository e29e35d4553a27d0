"""One of n parts of a corpus, the same part wherever its folders are mounted."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass

from mmcalib.errors import UsageError
from mmcalib.locations.location import BEHIND, Location

_SHARD = re.compile(r"([0-9]{1,9})/([0-9]{1,9})", re.ASCII)


@dataclass(frozen=True, slots=True, order=True)
class Shard:
    """Part `index` of `of`, counted from 1. Raises UsageError outside of that."""

    of: int
    index: int

    def __post_init__(self) -> None:
        if not 1 <= self.index <= self.of:
            raise UsageError(f"no such shard: {self}", hint=f"1/{max(self.of, 1)} is the first")

    @classmethod
    def parse(cls, words: str) -> Shard:
        """`2/8` is the second of eight. Raises UsageError."""
        found = _SHARD.fullmatch(words)
        if found is None:
            raise UsageError(f"not a shard: {words}", hint="--shard 1/4 is the first of four")
        return cls(of=int(found[2]), index=int(found[1]))

    def has(self, key: bytes) -> bool:
        """Whether it is the one shard of `of` that `key` belongs to."""
        digest = hashlib.blake2b(key, digest_size=8).digest()
        return int.from_bytes(digest) % self.of == self.index - 1

    def __str__(self) -> str:
        return f"{self.index}/{self.of}"


class ShardPart:
    """What a shard has of the corpus below `roots`.

    A file belongs to a shard by its path below the innermost root that it lies in, so that it has
    one shard even where roots overlap; a member of an archive also by its name in there; a request
    by its line.
    """

    def __init__(self, shard: Shard, roots: Iterable[str | os.PathLike[str]]) -> None:
        self.shard = shard
        self._roots = {_absolute(os.fspath(root)).rstrip("/") for root in roots}

    def owns(self, path: str) -> bool:
        """Whether the file at this absolute path is for this shard to count."""
        return self.shard.has(os.fsencode(self._key(path)))

    def owns_prompt(self, origin: str) -> bool:
        """Whether the request that stands at `origin`, such as `requests.jsonl:7`, is."""
        return self.shard.has(os.fsencode(origin.rpartition(":")[2]))

    def _key(self, path: str) -> str:
        location = Location.of(path)
        if location.archive is not None:
            return f"{location.member}{BEHIND}{self._key(location.archive)}"
        end = path.rfind("/")
        while end >= 0:
            if path[:end] in self._roots:
                return path[end + 1 :]
            end = path.rfind("/", 0, end)
        return os.path.basename(path) if location.is_file else path


def _absolute(root: str) -> str:
    return os.path.abspath(root) if Location.of(root).is_file else root
