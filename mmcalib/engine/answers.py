"""Answers of earlier runs, in a folder: one file for each question."""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from mmcalib.engine.messages import Message, decode, encode
from mmcalib.errors import OutputError
from mmcalib.files import replacing

# A run asks some hundred questions. Of more files than the first the oldest go, down to the second.
_MOST, _LEFT = 4_000, 3_000
# What a file may hold; the largest known, of 20,000 shapes, has 3 MB.
_MOST_BYTES = 1 << 26
_END = ".answer"


class Answers:
    """By the digest of the question. Several processes may use one folder; a file that nobody could
    have written is as good as none. `on_found` hears of the first that others wrote.
    """

    def __init__(self, folder: Path, on_found: Callable[[], None] = lambda: None) -> None:
        self._folder, self._on_found = folder, on_found
        self._own: set[str] = set()
        with contextlib.suppress(OSError):  # then nothing is kept
            # Answers may name files of the corpus: for this user alone.
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._forget_oldest()

    def find(self, question: str) -> list[Message] | None:
        """Every message of the answer, in order; None where there is none."""
        path = self._folder / f"{question}{_END}"
        try:
            found = list(_decoded(path.read_bytes()))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, zlib.error):
            with contextlib.suppress(OSError):
                path.unlink()
            return None
        if question not in self._own:
            said, self._on_found = self._on_found, lambda: None
            said()
        return found

    def keep(self, question: str, answer: Iterable[Message]) -> None:
        """Written at once, so that a run that is killed has it. A folder that cannot be written
        remembers nothing.
        """
        self._own.add(question)
        content = zlib.compress(b"".join(map(_framed, answer)), 1)
        with (
            contextlib.suppress(OutputError),
            replacing(self._folder / f"{question}{_END}") as write,
        ):
            write(content)

    def _forget_oldest(self) -> None:
        with contextlib.suppress(OSError):
            kept = list(self._folder.glob(f"*{_END}"))
            if len(kept) <= _MOST:
                return
            for path in sorted(kept, key=lambda one: one.stat().st_mtime)[:-_LEFT]:
                path.unlink(missing_ok=True)


def _framed(message: Message) -> bytes:
    line = encode(message)
    return len(line).to_bytes(4) + line


def _decoded(content: bytes) -> Iterator[Message]:
    """Raises ValueError, KeyError and zlib.error for what `keep` did not write."""
    unpacker = zlib.decompressobj()
    lines = unpacker.decompress(content, _MOST_BYTES)
    if not unpacker.eof:
        raise ValueError("cut off, or too long")
    at = 0
    while at < len(lines):
        size = int.from_bytes(lines[at : at + 4])
        yield decode(lines[at + 4 : at + 4 + size])
        at += 4 + size
