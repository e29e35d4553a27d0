"""Sources of remote files: buckets and URLs."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice

from mmcalib.corpus.archives import archive_source
from mmcalib.corpus.chat import Source
from mmcalib.corpus.folder import Files, is_pattern
from mmcalib.domain.items import ByteSource, Item, Skipped
from mmcalib.errors import CorpusError, UsageError
from mmcalib.media.failure import error_reason
from mmcalib.storage.archive import ARCHIVES
from mmcalib.storage.location import MEMBER_MARK, NOT_REGULAR, Location, is_http
from mmcalib.storage.remote import (
    extra_of,
    file_system,
    import_optional,
    listed_source,
    translate_errors,
)
from mmcalib.text import one_line

# Object stores can hold more, but fsspec keeps all names of a folder in memory.
MOST_LISTED = 10_000_000


class TooMany(ValueError):  # noqa: N818 - a value in flight, turned into `Skipped`
    """A folder has too many names."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One name of a listing; `held` is the object's size and version."""

    name: str
    type: str
    is_link: bool = False
    held: ByteSource | None = None

    @classmethod
    def of(cls, info: object) -> Entry | None:
        """Build an entry from fsspec's `info`; None if it has no name."""
        name = info.get("name") if isinstance(info, Mapping) else None
        if not isinstance(info, Mapping) or not isinstance(name, str) or not name:
            return None
        return cls(name, str(info.get("type")), bool(info.get("islink")), listed_source(info))

    @property
    def bare(self) -> str:
        return self.name.rstrip("/")

    @property
    def is_folder(self) -> bool:
        return self.type == "directory"


def entries(folder: Entry, infos: Iterable[object]) -> list[Entry]:
    """Return a listing's visible names, deduplicated and sorted. Raises TooMany."""
    by_name: dict[tuple[str, bool], Entry] = {}
    for number, info in enumerate(islice(infos, MOST_LISTED + 1)):
        if number == MOST_LISTED:
            raise TooMany(f"folder has more than {MOST_LISTED:,} names")
        entry = Entry.of(info) or Entry(f"{folder.bare}/?", "nameless")
        # Buckets list the object that marks a folder in the folder itself.
        if entry.bare == folder.bare:
            continue
        if not posixpath.basename(entry.bare).startswith("."):
            by_name.setdefault((entry.bare, entry.is_folder), entry)
    return sorted(by_name.values(), key=lambda entry: entry.bare)


# A deeper tree has circular links, or is not a corpus.
_MAX_LEVELS = 128

_ANY_LEVELS = "**"

# A tree with only folders is endless, or contains no media.
_MAX_FOLDERS = 10_000


class RemoteSource(Files[Entry]):
    """Every object below `url` (in fsspec's spelling), depth first and sorted by name.

    As for local folders, names with a leading dot are ignored and archives are replaced by their
    members. Lists one folder at a time; a web server has no listing, so its URL is one object.
    Raises UsageError for members of archives and URLs that cannot be opened.
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
                f"cannot open {one_line(url)}: {error_reason(error)}",
                hint="--data s3://BUCKET/FOLDER, https://HOST/FILE, or another URL of fsspec",
            ) from error
        self._matches: re.Pattern[str] | None = None
        self._levels = _MAX_LEVELS
        self._nothing = CorpusError(
            f"no files below {one_line(self.url)}",
            hint="files with a leading dot are ignored; put patterns in quotes",
        )

    def _item(self, info: Entry) -> Item | Skipped:
        url = self._url(info)
        if _is_ambiguous(url):
            why = f"the name contains {MEMBER_MARK}, which separates members of archives"
            return Skipped(url, why)
        if info.type != "file" and not (info.is_link and self._fs.isfile(info.name)):
            folder = info.is_link and self._fs.isdir(info.name)
            return Skipped(url, "link to a folder" if folder else NOT_REGULAR)
        return Item(url, byte_source=info.held)

    def _archive(self, info: Entry) -> Source | None:
        url = self._url(info)
        return archive_source(url) if info.type == "file" and not _is_ambiguous(url) else None

    def _url(self, info: Entry) -> str:
        return str(self._fs.unstrip_protocol(info.name))

    def _paths(self) -> Iterator[Entry | Skipped]:
        """Yield everything below the root but folders, one listing at a time."""
        waiting, seen, without = [(self._start(), 0)], set[str](), 0
        while waiting:
            info, level = waiting.pop()
            if not info.is_folder:
                without = 0
                if not self._matches or self._matches.match(info.bare):
                    yield info
            elif info.bare in seen:
                yield Skipped(self._url(info), "folder already read", no_media=True)
            elif without == _MAX_FOLDERS:
                yield Skipped(self._url(info), f"more than {_MAX_FOLDERS:,} folders, no files")
                return
            elif level < self._levels:
                seen.add(info.bare)
                without += 1
                try:
                    with translate_errors(extra_of(self.url)):
                        below = entries(info, self._fs.ls(info.name, detail=True))
                    waiting += [(one, level + 1) for one in reversed(below)]
                except (OSError, ValueError) as error:
                    why = str(error) if isinstance(error, TooMany) else error_reason(error)
                    yield Skipped(self._url(info), why)
            elif level == _MAX_LEVELS:
                yield Skipped(self._url(info), f"more than {_MAX_LEVELS} folders deep")

    def _start(self) -> Entry:
        if is_http(self.url):
            # Checking would cost one more request per URL, and web pages are not file listings.
            return Entry(self._root, "file")
        root = self._root
        try:
            with translate_errors(extra_of(self.url)):
                if is_pattern(root) and not self._fs.exists(root):
                    root = self._narrow(root)
                start = Entry.of(self._fs.info(root)) or Entry(root, "other")
                return replace(start, type="directory") if self._fs.isdir(root) else start
        except FileNotFoundError as error:
            raise CorpusError(
                f"nothing found at {one_line(self.url)}", hint="put patterns in quotes"
            ) from error
        except (OSError, ValueError) as error:
            raise CorpusError(
                f"cannot list {one_line(self.url)}: {error_reason(error)}",
                hint="--data s3://BUCKET/FOLDER; credentials come from the environment",
            ) from error

    def _narrow(self, pattern: str) -> str:
        """Return the folder in which a pattern starts, and match names against it from now on."""
        parts = pattern.split("/")
        plain = next(n for n, part in enumerate(parts) if is_pattern(part))
        regex = import_optional("fsspec.utils", "remote").glob_translate(pattern.rstrip("/"))
        self._matches = re.compile(regex)
        if _ANY_LEVELS not in pattern:
            self._levels = len(parts) - plain
        return "/".join(parts[:plain])


def _is_ambiguous(url: str) -> bool:
    return MEMBER_MARK in url.partition("://")[2]
