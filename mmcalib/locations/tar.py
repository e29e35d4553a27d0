"""One member of a tar archive, read where it stands."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from tarfile import TarInfo

from mmcalib.domain.items import Item
from mmcalib.locations.location import Location, member_name
from mmcalib.locations.opening import Opened
from mmcalib.locations.tarball import Damaged, Tar, TarArchive, is_file

# A compressed member can only be sought in memory.
MOST_INFLATED_BYTES = 1 << 28

_CHANGED = "its archive has changed since it was listed"


def open_item(item: Item, location: Location) -> Opened:
    """The member that `item` names; the first of that name. Raises OSError, and ValueError when the
    archive is damaged, has changed since it was listed, or has no such member.
    """
    archive, name = location.archive or "", member_name(location.member or "")
    if item.held is None or item.held.offset is None:
        place = _place(archive, name)
        if place is None:
            data = _STREAM.read(archive, name, item.held.version if item.held else None)
            return Opened(io.BytesIO(data), len(data))
        version, offset, size_bytes = place
    else:
        version, offset, size_bytes = item.held.version, item.held.offset, item.held.size_bytes
    return Opened(_archive(archive, version).part(offset, size_bytes), size_bytes)


@lru_cache(maxsize=1)
def _archive(path: str, version: str) -> TarArchive:
    """The archive that was opened last stays open: its other members come next."""
    archive = TarArchive(path)
    if archive.version != version:
        raise ValueError(_CHANGED)
    return archive


def _place(archive: str, name: str) -> tuple[str, int, int] | None:
    """Version, offset and size; None where the archive is compressed."""
    with Tar(archive) as tar:
        if tar.compressed:
            return None
        version = tar.version
    places = _places(archive, version)
    if name not in places:
        raise ValueError("no such member of its archive")
    return version, *places[name]


@lru_cache(maxsize=1)
def _places(archive: str, version: str) -> dict[str, tuple[int, int]]:
    """Of every file in the archive, the first of each name: offset and size."""
    found: dict[str, tuple[int, int]] = {}
    with Tar(archive) as tar, suppress(Damaged):
        for member in tar.members():
            if is_file(member):
                found.setdefault(member.name, (member.offset_data, member.size))
    return found


class _Stream:
    """The compressed archive that was read last, and how far: members that are asked for in the
    order of the archive cost one pass over it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tar: Tar | None = None
        self._members: Iterator[TarInfo] = iter(())

    def read(self, archive: str, name: str, version: str | None) -> bytes:
        """Raises OSError and ValueError."""
        with self._lock:
            tar, data = self._tar, None
            if tar and tar.path == archive and version in (None, tar.version):
                data = self._ahead(tar, name)
            if data is None:
                tar = self._begin(archive)
                if version not in (None, tar.version):
                    raise ValueError(_CHANGED)
                data = self._ahead(tar, name)
        if data is None:
            raise ValueError("no such member of its archive")
        return data

    def _begin(self, archive: str) -> Tar:
        if self._tar:
            self._tar.close()
        self._tar = Tar(archive)
        self._members = self._tar.members()
        return self._tar

    def _ahead(self, tar: Tar, name: str) -> bytes | None:
        for member in self._members:
            if member.name == name and is_file(member):
                if member.size > MOST_INFLATED_BYTES:
                    size = f"{MOST_INFLATED_BYTES >> 20} MiB"
                    raise ValueError(f"more than {size}, in a compressed archive")
                return tar.read(member, member.size)
        return None


_STREAM = _Stream()
