"""Files that hold other files, known by their endings."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator, Mapping
from typing import cast

from mmcalib.corpus.apart import Apart
from mmcalib.corpus.source import Source
from mmcalib.domain.items import Item, Prompt, Skipped

_TAR = ("mmcalib.corpus.webdataset", "WebDatasetSource")
# Imported when such a file is met: some need a library that is not always there.
_SOURCES: Mapping[str, tuple[str, str]] = {
    ".tar": _TAR,
    ".tgz": _TAR,
    ".tar.gz": _TAR,
    ".tar.bz2": _TAR,
    ".tar.xz": _TAR,
    ".tar.zst": _TAR,
    ".parquet": ("mmcalib.corpus.parquet", "ParquetSource"),
    ".zip": ("mmcalib.corpus.zip_archive", "ZipSource"),
}
_ENDINGS = tuple(_SOURCES)
# What is unpacked in a process of its own: a page of a table says how much it unpacks to.
_APART = frozenset((".parquet",))
# Of a million names few are an archive's: most are told by their last letter.
_LAST = frozenset(letter for ending in _ENDINGS for letter in (ending[-1], ending[-1].upper()))


def archive_at(path: str) -> Source | None:
    """What reads the archive at `path`, a file or a URL; None when its name is not one of them.

    Raises UsageError when the library that reads it is not installed.
    """
    if path[-1:] not in _LAST and path.startswith("/"):
        return None
    name = path.lower()
    if not path.startswith("/"):
        name = name.partition("?")[0]
    if not name.endswith(_ENDINGS):
        return None
    ending = next(ending for ending in _ENDINGS if name.endswith(ending))
    module, kind = _SOURCES[ending]
    source = cast("Source", getattr(importlib.import_module(module), kind)(path))
    return Apart(source, path) if ending in _APART else source


def items_of(found: Iterable[str | Skipped]) -> Iterator[Item | Skipped]:
    """Each file as an item, each archive as the items in it."""
    for path in found:
        if isinstance(path, Skipped):
            yield path
        elif archive := archive_at(path):
            yield from archive.items()
        else:
            yield Item(path)


def prompts_of(found: Iterable[str | Skipped]) -> Iterator[Prompt | Skipped]:
    """The requests in the archives; a file by itself is none."""
    for path in found:
        if not isinstance(path, Skipped) and (archive := archive_at(path)):
            yield from archive.prompts()
