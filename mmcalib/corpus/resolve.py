"""From what `--data` says to the sources that it means."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from mmcalib.corpus.archives import Apart, archive_at
from mmcalib.corpus.folder import (
    FolderSource,
    GlobSource,
    ListFile,
    PathsSource,
    StreamLines,
    is_pattern,
)
from mmcalib.corpus.source import Source
from mmcalib.errors import UsageError
from mmcalib.storage.location import NOT_ALLOWED, Location, is_allowed, is_http
from mmcalib.text import one_line

STDIN = "-"
_LIST = "@"
_HF = "hf-dataset"
# What an unset variable of a shell leaves; libraries take it for the working folder.
_NOTHING = ("", "file://", "local://")

# LAION-400M, a large data set, has 41,455 shards.
_MOST_BRACES = 1_000_000


def resolve(data: str | Path, *, given_as: str = "--data DIR") -> Iterator[Source]:
    """`-` is standard input, `@FILE` a list of paths, `scheme://` a URL; else a path, a pattern, or
    several in braces. What exists by this very name, and a `Path`, is that file or folder.

    `given_as` is what a hint calls it. Raises CorpusError when there is no such thing, UsageError
    for no name at all and when reading needs a library.
    """
    if isinstance(data, Path):
        yield FolderSource(data, given_as=given_as)
    elif data == STDIN:
        yield PathsSource(StreamLines(sys.stdin.buffer))
    elif not os.path.lexists(data) and data.startswith(_LIST):
        yield PathsSource(ListFile(data.removeprefix(_LIST)))
    elif os.path.lexists(data) or "{" not in data:
        yield _one(data, given_as)
    else:
        yield from (_one(name, given_as) for name in _braces(data))


def _one(data: str, given_as: str) -> Source:
    location = Location.of(data)
    if data in _NOTHING:
        raise UsageError(f"--data {data!r} names nothing", hint="--data . is the working folder")
    if location.scheme == _HF:
        from mmcalib.corpus.tables import HfDatasetSource

        return Apart(HfDatasetSource(data), data)
    if not location.is_file:
        from mmcalib.corpus.remote import RemoteSource

        if is_http(data) and not is_allowed(data):
            host = urlsplit(data).hostname or "HOST"
            raise UsageError(
                f"{one_line(data)}: {NOT_ALLOWED}", hint=f"--allowed-media-domains {host}"
            )
        one = location.archive is None and not is_pattern(data)
        return (one and archive_at(data)) or RemoteSource(data)
    if is_pattern(data) and not os.path.lexists(data):
        return GlobSource(data)
    return FolderSource(data, given_as=given_as)


def _braces(data: str) -> Iterator[str]:
    import bracex

    try:
        yield from bracex.iexpand(data, limit=_MOST_BRACES)
    except bracex.ExpansionLimitException as error:
        raise UsageError(
            f"more than {_MOST_BRACES:,} names: --data {one_line(data)}", hint="--data @paths.txt"
        ) from error
