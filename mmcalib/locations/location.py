"""Where an item's bytes are: a file's path, or a URL, with an archive behind its member."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from urllib.parse import quote

_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*)://", re.ASCII)

# fsspec's mark between a member and the archive that holds it.
BEHIND = "::"


@dataclass(frozen=True, slots=True)
class Location:
    """`tar://a/cat.jpg::s3://bucket/0001.tar` has the scheme `tar`, the member `a/cat.jpg` and the
    archive `s3://bucket/0001.tar`; the path of a file has none of them.
    """

    path: str
    scheme: str | None = None
    member: str | None = None
    archive: str | None = None

    @classmethod
    def of(cls, path: str) -> Location:
        """Take apart what `Item.path` says."""
        found = _SCHEME.match(path)
        if path.startswith("/") or not found:
            return cls(path)
        member, mark, archive = path[found.end() :].partition(BEHIND)
        return cls(path, found[1], member, archive) if mark else cls(path, found[1])

    @property
    def is_file(self) -> bool:
        return self.scheme is None


def inside(scheme: str, member: str, archive: str) -> str:
    """The location of a member; `%`, `::` and a last `:` of its name are percent-encoded."""
    name = member.replace("%", "%25").replace(BEHIND, "%3A%3A")
    if name.endswith(":"):
        name = name[:-1] + "%3A"
    return f"{scheme}://{name}{BEHIND}{archive}"


def member_name(member: str) -> str:
    """The reverse, for the `member` of a `Location`."""
    return member.replace("%3A", ":").replace("%25", "%")


def url_of(path: str) -> str:
    """What a request would name the item at `path`, which is absolute."""
    return "file://" + quote(os.fsencode(path)) if path.startswith("/") else path


def is_here(path: str) -> bool:
    """Whether the bytes are on a file system of this machine, so that reading them all is cheap."""
    return path.rpartition(BEHIND)[2].startswith("/")
