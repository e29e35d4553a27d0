"""What a file system of fsspec lists in one folder. The other side may say anything."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice

from mmcalib.domain.items import ByteSource
from mmcalib.locations.remote import held

# Object stores hold more; what lists them holds all names of a folder in memory.
MOST_LISTED = 10_000_000


class TooMany(ValueError):  # noqa: N818 - a value in flight, turned into `Skipped`
    """There is no end of names in one folder."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One name of a listing; `held` is what is known of the object."""

    name: str
    type: str
    is_link: bool = False
    held: ByteSource | None = None

    @classmethod
    def of(cls, info: object) -> Entry | None:
        """None for what has no name."""
        name = info.get("name") if isinstance(info, Mapping) else None
        if not isinstance(info, Mapping) or not isinstance(name, str) or not name:
            return None
        return cls(name, str(info.get("type")), bool(info.get("islink")), held(info))

    @property
    def bare(self) -> str:
        return self.name.rstrip("/")

    @property
    def is_folder(self) -> bool:
        return self.type == "directory"


def entries(folder: Entry, listed: Iterable[object]) -> list[Entry]:
    """What is shown of a listing, each name once, in their order. Raises TooMany."""
    found: dict[tuple[str, bool], Entry] = {}
    for number, info in enumerate(islice(listed, MOST_LISTED + 1)):
        if number == MOST_LISTED:
            raise TooMany(f"over {MOST_LISTED:,} names in one folder")
        entry = Entry.of(info) or Entry(f"{folder.bare}/?", "nameless")
        # Buckets list the object that marks a folder in the folder itself.
        if entry.bare == folder.bare:
            continue
        if not posixpath.basename(entry.bare).startswith("."):
            found.setdefault((entry.bare, entry.is_folder), entry)
    return sorted(found.values(), key=lambda entry: entry.bare)
