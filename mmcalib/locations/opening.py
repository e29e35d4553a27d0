"""From an item to its bytes, wherever they are."""

from __future__ import annotations

import errno
import hashlib
import importlib
import io
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol, cast

from mmcalib.closing import Closing
from mmcalib.domain.items import Item
from mmcalib.locations.atomic_copy import keep
from mmcalib.locations.disk import regular_version
from mmcalib.locations.location import BEHIND, Location

# Of a medium that is no file of its own; vLLM itself fetches 256 MB at most. Any server can say
# that it has more, and send it for ever.
MOST_COPIED_BYTES = 1 << 32


@dataclass(slots=True)
class Opened(Closing):
    """The bytes of one item; `file` can be read and sought, and is closed with it.

    `path` is set where they are a file of their own, which C libraries open faster by name, and
    `within` is what must stay open meanwhile.
    """

    file: BinaryIO
    size_bytes: int
    path: str | None = None
    within: object = None

    def close(self) -> None:
        self.file.close()


class _Opener(Protocol):
    def open_item(self, item: Item, location: Location) -> Opened: ...


# The module that reads each scheme. Any other scheme is one of fsspec's file systems.
_OPENERS: Mapping[str, str] = {
    "tar": "mmcalib.locations.archive",
    "zip": "mmcalib.locations.archive",
    "parquet": "mmcalib.locations.parquet",
    "hf-dataset": "mmcalib.locations.hf_dataset",
}
_ANY = "mmcalib.locations.remote"


def open_item(item: Item) -> Opened:
    """Open an item that is no file of its own. Raises OSError or ValueError when it is gone or
    damaged, UsageError when what reads it is not installed.
    """
    if item.held and item.held.data is not None:
        return Opened(io.BytesIO(item.held.data), len(item.held.data))
    location = Location.of(item.path)
    if location.is_file:
        file = cast("BinaryIO", open(item.path, "rb"))  # noqa: SIM115 - closed by `Opened`
        return Opened(file, os.fstat(file.fileno()).st_size, item.path)
    opener = cast("_Opener", importlib.import_module(_OPENERS.get(location.scheme or "", _ANY)))
    return opener.open_item(item, location)


def open_whole(path: str) -> tuple[str, BinaryIO, int]:
    """What tells the versions of a regular file or of an object apart, its bytes and its size.

    Raises OSError or ValueError, UsageError when a package is not installed.
    """
    if Location.of(path).is_file:
        version = regular_version(path)
        file = cast("BinaryIO", open(path, "rb"))  # noqa: SIM115 - closed by who asked
        return version, file, os.fstat(file.fileno()).st_size
    from mmcalib.locations.remote import open_url

    version = version_of(path)
    return version, *open_url(path)


def version_of(path: str) -> str:
    """The version alone. Raises the same."""
    if Location.of(path).is_file:
        return regular_version(path)
    from mmcalib.locations import remote

    return remote.version_of(path)


def local_copy(path: str, scratch: Path) -> str:
    """The path of a file with the bytes of the item at `path`: itself, or a copy in `scratch`.

    Raises as `open_item` does, and OutputError when it cannot be written. A copy is made anew by
    every process, because what it was made of may have changed.
    """
    if Location.of(path).is_file:
        return path
    name = hashlib.sha256(os.fsencode(path)).hexdigest()
    with open_item(Item(path)) as opened:
        if opened.size_bytes > MOST_COPIED_BYTES:
            raise OSError(errno.EFBIG, f"more than {MOST_COPIED_BYTES >> 30} GiB, not copied")
        suffix = Path(path.partition(BEHIND)[0]).suffix
        return keep(opened.file, scratch / f"{name}{suffix}", opened.size_bytes)
