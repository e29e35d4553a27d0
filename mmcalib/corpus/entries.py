"""Entries of an export, one after the other: JSON Lines, one JSON list, or lines of text."""

from __future__ import annotations

import codecs
import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from mmcalib.corpus.chat import LONGEST_LINE_BYTES
from mmcalib.corpus.exported import Entry, Unusable
from mmcalib.corpus.packed import refuse_packed
from mmcalib.errors import CorpusError
from mmcalib.wording import one_line

_BLOCK: Final = 1 << 16
_BETWEEN: Final = re.compile(r"[\s,]*")
# Where a document that is one object has its rows, as APIs give them.
_LISTS: Final = ("data", "observations", "logs", "response")
_TOO_LONG: Final = Unusable(f"more than {LONGEST_LINE_BYTES >> 20} MiB")


def entries(path: Path) -> Iterator[Entry | Unusable]:
    """Those of the file, read piece by piece; no more than one of them is held. A line of text that
    is no JSON is an entry as it is. Raises CorpusError where the file cannot be read.
    """
    try:
        with path.open("rb") as file:
            head = file.read(_BLOCK).removeprefix(codecs.BOM_UTF8).lstrip()
        refuse_packed(path, head)
        yield from (_of_list(path) if _is_list(head) else _of_lines(path))
    except OSError as error:
        raise CorpusError(
            f"cannot read {one_line(str(path))}: {error.strerror}",
            hint="a log of requests: JSON Lines, a JSON list, or the log of vLLM",
        ) from error


def _is_list(head: bytes) -> bool:
    """A list over the whole file: its first element is an object, or it is empty."""
    return head[:1] == b"[" and head[1:].lstrip()[:1] in (b"{", b"]", b"")


def _of_lines(path: Path) -> Iterator[Entry | Unusable]:
    with path.open("rb") as file:
        for number in itertools.count(1):
            line = end = file.readline(LONGEST_LINE_BYTES + 1)
            if not line:
                return
            while end and not end.endswith(b"\n"):
                end = file.readline(_BLOCK)
            if number == 1:
                line = line.removeprefix(codecs.BOM_UTF8)
            if len(line) > LONGEST_LINE_BYTES:
                yield _TOO_LONG
            elif line and not line.isspace():
                yield from _parsed(line.decode(errors="replace").rstrip("\r\n"))


def _parsed(line: str) -> Iterator[Entry | Unusable]:
    if not line.lstrip().startswith("{"):
        yield line
        return
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        yield line
        return
    yield from _rows(found)


def _rows(found: dict[str, Any]) -> Iterator[Entry]:
    """The object itself, or what a page of an API lists."""
    for name in _LISTS:
        listed = found.get(name)
        if len(found) <= 2 and isinstance(listed, list) and listed and _objects(listed):
            yield from listed
            return
    yield found


def _objects(listed: list[Any]) -> bool:
    return all(isinstance(one, dict) for one in listed)


def _of_list(path: Path) -> Iterator[Entry | Unusable]:
    decoder, held, at = json.JSONDecoder(), "", 0
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        held = file.read(_BLOCK).lstrip()[1:]
        wanted = _BLOCK
        while True:
            between = _BETWEEN.match(held, at)
            at = between.end() if between else at
            if held[at : at + 1] == "]":
                return
            try:
                found, end = decoder.raw_decode(held, at) if at < len(held) else (None, -1)
                # A number might go on.
                whole = 0 <= end < len(held)
            except (ValueError, RecursionError):
                whole = False
            if whole:
                at, wanted = end, _BLOCK
                yield found if isinstance(found, dict) else Unusable("no JSON object")
                continue
            more = file.read(wanted) if len(held) - at <= LONGEST_LINE_BYTES else ""
            if not more:
                yield Unusable("the list is not JSON from here on, or an entry is too long")
                return
            held, at, wanted = held[at:] + more, 0, wanted * 2
