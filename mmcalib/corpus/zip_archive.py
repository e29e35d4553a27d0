"""A zip archive of media."""

from __future__ import annotations

import re
from collections.abc import Iterator

from mmcalib.corpus.walk import is_hidden
from mmcalib.domain.items import ByteSource, Item, Prompt, Skipped
from mmcalib.locations.location import inside
from mmcalib.locations.optional_deps import need
from mmcalib.locations.zip import open_archive
from mmcalib.media.failure import reason


class ZipSource:
    """Every member of the archive at `path` or a URL, in the order of sorted names.

    With `pattern` only those that it matches, as fsspec matches. Names with a part that begins
    with a dot are left out; of two members with one name the last is meant. An archive that cannot
    be read is `Skipped`.
    """

    def __init__(self, path: str, *, pattern: str = "") -> None:
        self.path = path
        self._matches = re.compile(_regex(pattern)) if pattern else None

    def items(self) -> Iterator[Item | Skipped]:
        try:
            archive = open_archive(self.path)
        except (OSError, ValueError) as error:
            yield Skipped(self.path, reason(error))
            return
        empty = True
        for name, member in sorted(archive.directory.NameToInfo.items()):
            if member.is_dir() or is_hidden(name):
                continue
            if self._matches and not self._matches.match(name):
                continue
            empty = False
            location = inside("zip", name, self.path)
            if why := archive.unreadable(member):
                yield Skipped(location, why)
            else:
                yield Item(location, held=ByteSource(archive.version, member.file_size))
        if empty and not self._matches:
            yield Skipped(self.path, "archive without files")

    def prompts(self) -> Iterator[Prompt | Skipped]:
        yield from ()


def _regex(pattern: str) -> str:
    return str(need("fsspec.utils", "remote").glob_translate(pattern))
