"""Short lists of paths, in the fewest bytes: a folder is kept once for all files in it."""

from __future__ import annotations

import json
from collections.abc import Sequence


class PathLists:
    """Each list is known by a number. What nobody asks for any more stays: `lists` in all."""

    __slots__ = ("_folders", "_named", "_text", "lists")

    def __init__(self) -> None:
        self.lists = 0
        self._text = bytearray()
        self._folders: dict[str, int] = {}
        self._named: list[str] = []

    def add(self, paths: Sequence[str]) -> int:
        """The number of the list."""
        at, self.lists = len(self._text), self.lists + 1
        parts: list[int | str] = []
        for path in paths:
            folder, slash, name = path.rpartition("/")
            parts += (self._folder(folder + slash), name)
        self._text += json.dumps(parts).encode() + b"\n"
        return at

    def __getitem__(self, at: int) -> tuple[str, ...]:
        parts = json.loads(self._text[at : self._text.index(b"\n", at)])
        return tuple(
            self._named[folder] + name for folder, name in zip(parts[::2], parts[1::2], strict=True)
        )

    def _folder(self, path: str) -> int:
        number = self._folders.get(path)
        if number is None:
            number = self._folders[path] = len(self._named)
            self._named.append(path)
        return number
