"""A JSON document that is read value by value: memory does not grow by its size."""

from __future__ import annotations

import codecs
import itertools
import json
import re
from collections.abc import Iterator
from typing import Any, BinaryIO, Final

from mmcalib.documents import (
    DECODER,
    MOST_CONTAINERS,
    MOST_KEYS,
    check_containers,
    check_size,
)
from mmcalib.sizes import MIB

_BLOCK_BYTES: Final = MIB
# Of one value: a request with all that it says.
_MOST_CHARS: Final = 1 << 28
_SPACE: Final = re.compile(r"[ \t\n\r]*")


class LongDocument:
    """An object of JSON such as `read_json` takes; the file may be a pipe.

    Of each name in `members` either the `value` or the `entries` are to be read before the next.
    `file` gives as many bytes as it is asked for, unless it ends. All raise ValueError or
    RecursionError for what is not JSON, for more than `most_bytes`, and for more than
    `most_entries` in a list; OSError where it cannot be read.
    """

    def __init__(self, file: BinaryIO, *, most_bytes: int, most_entries: int) -> None:
        self._file = file
        self._most_bytes, self._most_entries = most_bytes, most_entries
        self._utf8 = codecs.getincrementaldecoder("utf-8")()
        self._ended = False
        self._read_bytes = 0
        # What was read and is not yet used begins at `_at`, behind so many characters.
        self._text, self._at, self._before = "", 0, 0

    def members(self) -> Iterator[str]:
        """The names of the object, in their order."""
        self._take("{")
        if self._next() == "}":
            self._take("}")
        else:
            yield from self._names()
        if behind := self._next():
            raise self._wrong(f"{behind!r} stands behind the end")

    def entries(self) -> Iterator[Any]:
        """The values of a list, one by one."""
        self._take("[")
        if self._next() == "]":
            self._take("]")
            return
        for number in itertools.count(1):
            if number > self._most_entries:
                raise ValueError(f"a list has more than {self._most_entries:,} entries")
            yield self.value()
            if self._take(",]") == "]":
                return

    def value(self) -> Any:
        """The next value, whole."""
        self._next()
        while True:
            try:
                found, end = DECODER.raw_decode(self._text, self._at)
            except json.JSONDecodeError as error:
                wrong = self._wrong(error.msg, error.pos - self._at)
                if not self._more():
                    raise wrong from error
                continue
            if end < len(self._text):
                self._at = end
                break
            # A number may go on behind what was read.
            if not self._more():
                self._at = len(self._text)
                break
        check_size(found)
        return found

    def _names(self) -> Iterator[str]:
        names: set[str] = set()
        while True:
            name = self.value()
            if not isinstance(name, str):
                raise self._wrong("no name")
            if name in names:
                raise ValueError("an object has a key twice")
            names.add(name)
            if len(names) > MOST_KEYS:
                raise ValueError(f"an object has more than {MOST_KEYS:,} keys")
            self._take(":")
            yield name
            if self._take(",}") == "}":
                return

    def _take(self, wanted: str) -> str:
        found = self._next()
        if not found or found not in wanted:
            raise self._wrong(f"no {' or '.join(wanted)}")
        self._at += 1
        return found

    def _next(self) -> str:
        """What stands behind the space here; nothing at the end."""
        while True:
            space = _SPACE.match(self._text, self._at)
            self._at = space.end() if space else self._at
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._more():
                return ""

    def _more(self) -> bool:
        """Read as much again as is not used yet, and a block at least; whether there was more."""
        left = len(self._text) - self._at
        if self._ended or left > _MOST_CHARS:
            return False
        block = self._file.read(max(_BLOCK_BYTES, left))
        self._ended = not block
        self._read_bytes += len(block)
        if self._read_bytes > self._most_bytes:
            raise ValueError(f"it is larger than {self._most_bytes:,} bytes")
        self._before += self._at
        self._text = self._text[self._at :] + self._utf8.decode(block, final=self._ended)
        self._at = 0
        if len(self._text) > MOST_CONTAINERS:
            check_containers(self._text)
        return not self._ended

    def _wrong(self, why: str, behind: int = 0) -> ValueError:
        return ValueError(f"not JSON: {why} at character {self._before + self._at + behind:,}")
