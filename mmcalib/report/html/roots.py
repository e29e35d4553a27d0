"""Of which files a report may show pictures."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass

from mmcalib.storage.location import Location


@dataclass(frozen=True, slots=True)
class Roots:
    """Folders and files that somebody named, without links on their way."""

    paths: tuple[str, ...] = ()

    @classmethod
    def of(cls, named: Iterable[str | os.PathLike[str]]) -> Roots:
        return cls(tuple(os.path.realpath(path) for path in named))

    def hold(self, exemplar: str) -> bool:
        """Whether the item's file, or the archive that it is a member of, is one of them or lies
        below one. Where a link leads is what counts.
        """
        try:
            real = os.path.realpath(Location.of(exemplar).archive or exemplar)
            return any(os.path.commonpath((real, root)) == root for root in self.paths)
        except (OSError, ValueError):
            # A name that no file can have.
            return False
