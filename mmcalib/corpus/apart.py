"""A source that is read in a process of its own, which may die of it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Literal, NamedTuple, cast

from mmcalib.closing import Closing
from mmcalib.corpus.source import Source
from mmcalib.domain.items import Item, Prompt, Skipped
from mmcalib.errors import MmcalibError
from mmcalib.locations.location import is_here
from mmcalib.processes import spawn
from mmcalib.processes.pipe import patient_pipe

What = Literal["items", "prompts"]
Found = Item | Prompt | Skipped

# Above what the process needs itself. A row of a table is there three times over: unpacked from its
# page, as a value of the table, and as bytes of Python.
MEMORY_BYTES = 2 << 30

# The longest silence: of an archive on this machine, as long as an item may take; from elsewhere,
# as long as ten requests may take.
SILENCE_S = 30.0
REMOTE_SILENCE_S = 300.0


class End(NamedTuple):
    """Behind the last list: all was read, or `reason` is why not, or `failure` is to be raised."""

    reason: str = ""
    failure: tuple[type[MmcalibError], str, str] | None = None


class Apart:
    """What `source`, the archive, table or data set at `path`, has to give. Where reading it ends
    early, the last that is given says so, `Skipped` under `path`. Raises what the source raises.
    """

    def __init__(
        self,
        source: Source,
        path: str,
        *,
        silence_s: float | None = None,
        memory_bytes: int = MEMORY_BYTES,
    ) -> None:
        self.source, self.path = source, path
        self._silence_s = silence_s or (SILENCE_S if is_here(path) else REMOTE_SILENCE_S)
        self._memory_bytes = memory_bytes

    def items(self) -> Iterator[Item | Skipped]:
        yield from cast("Iterator[Item | Skipped]", self._read("items"))

    def prompts(self) -> Iterator[Prompt | Skipped]:
        yield from cast("Iterator[Prompt | Skipped]", self._read("prompts"))

    def _read(self, what: What) -> Iterator[Found]:
        with _taken(self._memory_bytes) as reader:
            reader.ask(self.source, what)
            while not isinstance(said := reader.hear(self._silence_s), End):
                yield from said
            if said.failure:
                kind, message, hint = said.failure
                raise kind(message, hint=hint)
            if not said.reason:
                _IDLE.append(reader)
                return
        yield Skipped(self.path, said.reason)


class _Reader(Closing):
    """The process, as its parent sees it. One that is idle is kept for the next source."""

    def __init__(self, memory_bytes: int) -> None:
        self.memory_bytes = memory_bytes
        self._pipe, theirs = patient_pipe(SILENCE_S)
        numbers = [theirs.fileno(), memory_bytes]
        self._process = spawn.spawn("mmcalib.corpus.reader", numbers, numbers[:1])
        theirs.close()

    def ask(self, source: Source, what: What) -> None:
        with contextlib.suppress(OSError):  # `hear` says how it ended, or that it is silent
            self._pipe.send((source, what))

    def hear(self, silence_s: float) -> list[Found] | End:
        """What it says next; how it ended, where it says nothing more."""
        try:
            if not self._pipe.poll(silence_s):
                return End(f"a decoder took more than {silence_s:g} s")
            said: list[Found] | End = self._pipe.recv()
        except (EOFError, OSError):
            return End(f"a decoder {spawn.how_it_ended(self._process)}")
        return said

    def alive(self) -> bool:
        return self._process.poll() is None

    def close(self) -> None:
        if self not in _IDLE:
            self.end()

    def end(self) -> None:
        self._pipe.close()
        self._process.kill()
        self._process.wait()


# A corpus of a thousand tables has them read by one process, one after the other.
_IDLE: list[_Reader] = []


def _taken(memory_bytes: int) -> _Reader:
    """A reader that waits for work, or a new one."""
    for reader in list(_IDLE):
        if reader.memory_bytes == memory_bytes:
            _IDLE.remove(reader)
            if reader.alive():
                return reader
            reader.end()
    return _Reader(memory_bytes)


def end_readers() -> None:
    """End those that wait for work."""
    while _IDLE:
        _IDLE.pop().end()
