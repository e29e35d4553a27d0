"""One chat request, wherever it comes from, and the files that it names."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from mmcalib.corpus.asking import asked
from mmcalib.corpus.chat import BadRequest, parse_line
from mmcalib.corpus.content_parts import MODALITY_OF, UrlType, url_part
from mmcalib.corpus.urls import (
    Outside,
    Unresolved,
    inline_file,
    is_inline,
    local_path,
    remote_url,
)
from mmcalib.domain.items import Item, Prompt, Skipped
from mmcalib.errors import UsageError
from mmcalib.locations.domains import is_allowed
from mmcalib.locations.location import Location, url_of
from mmcalib.wording import one_line

# Names of which it is remembered what they lead to, where nothing changes: some 500 bytes each.
_MOST_NAMES = 1 << 15


@dataclass(frozen=True, slots=True)
class _Named:
    """What a part names: the item, the URL that a replay names it by, and whether it is there."""

    item: Item
    url: str
    there: bool


class RequestLines:
    """Reads requests whose relative paths start at `folder`, a resolved path.

    Media must lie below `allowed_root` (default: that folder), links resolved. Inline media are
    written to `scratch` and are items like the others. Remote media are items by their URLs where
    their hosts are allowed, and otherwise refused. With `at_rest` files do not come or go
    meanwhile: one that is named often is looked for once.
    """

    def __init__(
        self,
        folder: str,
        *,
        allowed_root: str | Path | None = None,
        scratch: Path,
        at_rest: bool = False,
    ) -> None:
        self._folder = folder
        self._root = os.path.realpath(allowed_root) if allowed_root else folder
        self._scratch = scratch
        self._found = lru_cache(_MOST_NAMES)(self._find) if at_rest else self._find

    def prompt(self, origin: str, line: bytes) -> Prompt | Skipped:
        """The request, or why it is none. Raises UsageError for a file outside the root."""
        found: list[_Named] = []
        replayable: list[dict[str, object]] = []
        words: list[str] = []
        try:
            request = parse_line(line)
            for message, raw in zip(request.messages, request.written, strict=True):
                media = message.media
                named = [one and self._named(one, origin) for one in media]
                found += [one for one in named if one]
                replayable.append(_with_file_urls(media, raw, named))
                words += message.words
        except (BadRequest, Unresolved) as error:
            return Skipped(origin, one_line(str(error)))
        for one in found:
            if not one.there:
                return Skipped(origin, one_line(f"names a missing file: {one.item.path}"))
        asks = asked(request.written, request.fields)
        items = tuple(one.item for one in found)
        return Prompt(origin, items, "\n".join(words), replayable, request.fields, asks)

    def item(self, media: tuple[UrlType, str], origin: str) -> Item:
        """The file that one part names. Raises `Unresolved`, UsageError and OutputError."""
        return self._named(media, origin).item

    def _named(self, media: tuple[UrlType, str], origin: str) -> _Named:
        try:
            # What carries its bytes is no name to remember.
            return (self._find if is_inline(media[1]) else self._found)(*media)
        except Outside as error:
            raise UsageError(
                f"{origin}: {one_line(str(error))} is outside the allowed root {self._root}",
                hint="--allowed-local-media-path DIR",
            ) from error

    def _find(self, part_type: UrlType, url: str) -> _Named:
        if is_inline(url):
            path = inline_file(part_type, url, self._scratch)
        elif (remote := remote_url(url)) and is_allowed(remote):
            path = remote
        else:
            path = local_path(url, self._folder, self._root)
        item = Item(path, MODALITY_OF[part_type])
        return _Named(item, url_of(path), exists(item))


def exists(item: Item) -> bool:
    """Whether there is such a file; of a remote one only the probe can tell."""
    return not Location.of(item.path).is_file or os.path.exists(item.path)


def _with_file_urls(
    media: Sequence[tuple[UrlType, str] | None],
    written: dict[str, object],
    named: Sequence[_Named | None],
) -> dict[str, object]:
    """The message as written, but for its media; each of its parts has an entry in both."""
    raw = written.get("content")
    if not isinstance(raw, list):
        return written
    content: list[object] = [
        url_part(one[0], found.url) if one and found else part
        for part, one, found in zip(raw, media, named, strict=True)
    ]
    return {**written, "content": content}
