"""Turn the value of `--data` into sources."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from mmcalib.corpus import folder
from mmcalib.corpus.archives import SubprocessSource, archive_source
from mmcalib.corpus.chat import Source
from mmcalib.corpus.remote import RemoteSource
from mmcalib.corpus.tables import HfDatasetSource
from mmcalib.domain.shapes import is_size
from mmcalib.errors import UsageError
from mmcalib.storage.location import NOT_ALLOWED, Location, is_allowed, is_http
from mmcalib.storage.tables import is_saved
from mmcalib.text import one_line

STDIN = "-"
_LIST = "@"
# An unset shell variable leaves these. Libraries would read the working folder.
_EMPTY = ("", "file://", "local://")

# For scale: LAION-400M has 41,455 shards.
_MAX_NAMES = 1_000_000


def find_sources(data: str | Path, *, given_as: str = "--data DIR") -> Iterator[Source]:
    """Yield the sources that `data` names; an existing file or folder of that name comes first.

    Otherwise `-` is standard input, `@FILE` a list of paths, `scheme://` a URL, and the rest a path
    or pattern, with braces for several. Hints name the option `given_as`. Raises CorpusError if
    nothing is found, UsageError if `data` is empty or reading it needs a missing library.
    """
    if is_saved(data):
        url = f"{HfDatasetSource.scheme}://{os.path.abspath(data)}"
        yield SubprocessSource(HfDatasetSource(url), url)
    elif isinstance(data, Path):
        yield folder.FolderSource(data, given_as=given_as)
    elif data == STDIN:
        yield folder.PathsSource(folder.StreamLines(sys.stdin.buffer))
    elif not os.path.lexists(data) and data.startswith(_LIST):
        yield folder.PathsSource(folder.ListFile(data.removeprefix(_LIST)))
    elif os.path.lexists(data) or "{" not in data:
        yield _resolve_name(data, given_as)
    else:
        yield from (_resolve_name(name, given_as) for name in _expand_braces(data))


def _resolve_name(data: str, given_as: str) -> Source:
    location = Location.of(data)
    if data in _EMPTY:
        raise UsageError(f"--data {data!r} is empty", hint="--data . reads the working folder")
    if location.scheme == HfDatasetSource.scheme:
        return SubprocessSource(HfDatasetSource(data), data)
    if is_size(data) and not os.path.lexists(data):
        return folder.PathsSource([data.encode()], tag="")
    if not location.is_file:
        if is_http(data) and not is_allowed(data):
            host = urlsplit(data).hostname or "HOST"
            raise UsageError(
                f"{one_line(data)}: {NOT_ALLOWED}", hint=f"--allowed-media-domains {host}"
            )
        one = location.archive is None and not folder.is_pattern(data)
        return (one and archive_source(data)) or RemoteSource(data)
    if folder.is_pattern(data) and not os.path.lexists(data):
        return folder.GlobSource(data)
    return folder.FolderSource(data, given_as=given_as)


def _expand_braces(data: str) -> Iterator[str]:
    import bracex

    try:
        yield from bracex.iexpand(data, limit=_MAX_NAMES)
    except bracex.ExpansionLimitException as error:
        raise UsageError(
            f"--data {one_line(data)} expands to more than {_MAX_NAMES:,} names",
            hint="--data @paths.txt",
        ) from error
