"""Opening sound with libsndfile, by name or from any file object."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import soundfile

from mmcalib.media.bounded import Bounded, Medium
from mmcalib.media.failure import failures, read_errors


@contextmanager
def open_sound(medium: Medium) -> Iterator[soundfile.SoundFile]:
    """Open for reading. Raises `Unreadable` or one of `read_errors`, also from within."""
    if isinstance(medium, str):
        with soundfile.SoundFile(medium) as sound:
            yield sound
        return
    medium.seek(0)
    quiet = _Quiet(medium)
    try:
        with soundfile.SoundFile(quiet) as sound:
            yield sound
    finally:
        if quiet.failure is not None:
            raise quiet.failure


class _Quiet:
    """What libsndfile calls back: an exception would be printed there and lost, so it is kept."""

    def __init__(self, medium: Bounded) -> None:
        self._medium = medium
        self.failure: Exception | None = None

    def readinto(self, buffer: memoryview) -> int:
        if self.failure is None:
            try:
                data = self._medium.read(len(buffer))
            except failures() as error:
                self.failure = error
            else:
                buffer[: len(data)] = data
                return len(data)
        return 0

    # Its presence is asked for, the other is called.
    read = readinto

    def seek(self, offset: int, whence: int = 0) -> int:
        try:
            return self._medium.seek(offset, whence)
        except read_errors():
            # Damaged headers lead before the start; of a file on disk the C library says the same.
            return -1

    def tell(self) -> int:
        return self._medium.tell()
