"""Buckets and URLs."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice

from mmcalib.corpus.archives import archive_at
from mmcalib.corpus.folder import Files
from mmcalib.corpus.source import Source
from mmcalib.domain.items import ByteSource, Item, Skipped
from mmcalib.errors import CorpusError, UsageError
from mmcalib.media.failure import reason
from mmcalib.storage.archive import ARCHIVES
from mmcalib.storage.location import BEHIND, NOT_REGULAR, Location, is_http
from mmcalib.storage.remote import extra_of, file_system, held, need, plain_errors
from mmcalib.text import one_line

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


# Deeper trees are links that lead back, or no corpus.
_MOST_LEVELS = 128

_ANY_LEVELS = "**"

# A tree of nothing but folders has no end, or no media.
_MOST_FOLDERS = 10_000


class RemoteSource(Files[Entry]):
    """Every object below `url`, in fsspec's spelling, in the order of sorted names, depth first.

    As in a folder, names that begin with a dot are left out, and archives are read as what they
    hold. Listed folder by folder. Objects on a web server are named one by one. Raises UsageError
    for what nothing can open, and for a member of an archive.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        location = Location.of(url)
        if location.archive is not None or location.scheme in (*ARCHIVES, "parquet"):
            whole = location.archive or url.partition("://")[2]
            raise UsageError(f"cannot list {one_line(url)}", hint=f"--data {one_line(whole)}")
        try:
            self._fs, self._root = file_system(url)
        except (OSError, ValueError) as error:
            raise CorpusError(
                f"cannot open {one_line(url)}: {reason(error)}",
                hint="--data s3://BUCKET/FOLDER, https://HOST/FILE, or another URL of fsspec",
            ) from error
        self._matches: re.Pattern[str] | None = None
        self._levels = _MOST_LEVELS
        self._nothing = CorpusError(
            f"nothing below {one_line(self.url)}",
            hint="names with a leading dot do not count; a pattern stands in quotes",
        )

    def _item(self, info: Entry) -> Item | Skipped:
        url = self._url(info)
        if _is_ambiguous(url):
            return Skipped(url, f"a name with {BEHIND} cannot be told from a member of an archive")
        if info.type != "file" and not (info.is_link and self._fs.isfile(info.name)):
            folder = info.is_link and self._fs.isdir(info.name)
            return Skipped(url, "link to a folder" if folder else NOT_REGULAR)
        return Item(url, held=info.held)

    def _archive(self, info: Entry) -> Source | None:
        url = self._url(info)
        return archive_at(url) if info.type == "file" and not _is_ambiguous(url) else None

    def _url(self, info: Entry) -> str:
        return str(self._fs.unstrip_protocol(info.name))

    def _paths(self) -> Iterator[Entry | Skipped]:
        """What is no folder, below the root, one listing at a time."""
        waiting, seen, without = [(self._start(), 0)], set[str](), 0
        while waiting:
            info, level = waiting.pop()
            if not info.is_folder:
                without = 0
                if not self._matches or self._matches.match(info.bare):
                    yield info
            elif info.bare in seen:
                yield Skipped(self._url(info), "folder that was already read", no_media=True)
            elif without == _MOST_FOLDERS:
                yield Skipped(self._url(info), f"over {_MOST_FOLDERS:,} folders without a file")
                return
            elif level < self._levels:
                seen.add(info.bare)
                without += 1
                try:
                    with plain_errors(extra_of(self.url)):
                        below = entries(info, self._fs.ls(info.name, detail=True))
                    waiting += [(one, level + 1) for one in reversed(below)]
                except (OSError, ValueError) as error:
                    why = str(error) if isinstance(error, TooMany) else reason(error)
                    yield Skipped(self._url(info), why)
            elif level == _MOST_LEVELS:
                yield Skipped(self._url(info), f"over {_MOST_LEVELS} folders deep")

    def _start(self) -> Entry:
        if is_http(self.url):
            # Asking about each would be a request more, and a web page is no list of files.
            return Entry(self._root, "file")
        root = self._root
        try:
            with plain_errors(extra_of(self.url)):
                if need("fsspec.core", "remote").has_magic(root) and not self._fs.exists(root):
                    root = self._narrow(root)
                start = Entry.of(self._fs.info(root)) or Entry(root, "other")
                return replace(start, type="directory") if self._fs.isdir(root) else start
        except FileNotFoundError as error:
            raise CorpusError(
                f"nothing at {one_line(self.url)}", hint="a pattern stands in quotes"
            ) from error
        except (OSError, ValueError) as error:
            raise CorpusError(
                f"cannot list {one_line(self.url)}: {reason(error)}",
                hint="--data s3://BUCKET/FOLDER; credentials are those of the environment",
            ) from error

    def _narrow(self, pattern: str) -> str:
        """The folder in which a pattern starts, which from now on must match."""
        parts = pattern.split("/")
        plain = next(n for n, part in enumerate(parts) if need("fsspec.core", "").has_magic(part))
        regex = need("fsspec.utils", "remote").glob_translate(pattern.rstrip("/"))
        self._matches = re.compile(regex)
        if _ANY_LEVELS not in pattern:
            self._levels = len(parts) - plain
        return "/".join(parts[:plain])


def _is_ambiguous(url: str) -> bool:
    return BEHIND in url.partition("://")[2]
