"""Requests without what anybody wrote or showed: the same lengths, counts and shapes."""

from __future__ import annotations

import hashlib
import math
import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from mmcalib.corpus.asking import asked, is_plain
from mmcalib.corpus.content_parts import MODALITY_OF, UrlType, text_part
from mmcalib.corpus.urls import (
    Outside,
    Unresolved,
    inline_file,
    is_inline,
    local_path,
    remote_url,
)
from mmcalib.domain.items import Item, Skipped
from mmcalib.domain.shapes import Modality, Shape, VideoShape
from mmcalib.errors import UsageError
from mmcalib.media.blank import write_blank
from mmcalib.media.ending import examine_whole
from mmcalib.wording import one_line

# A letter behind a space is one token of a byte-pair tokenizer: one for two bytes. Prose has fewer
# tokens for its bytes, long numbers more.
_FILLER: Final = "x "
# OpenAI's, and what templates know; any other is a word that somebody chose.
_ROLES: Final = ("system", "developer", "user", "assistant", "tool")
# A container writes its rate as a fraction.
_RATE_OFF: Final = 0.01


class AsBlanks:
    """Each medium becomes a blank file below `media` of the very same shape. Equal media get one
    file, others one of their own colour or tone, so that what repeats still does.

    Local files must lie below `allowed_root` (default: the folder of their export); remote ones
    are read with `allow_url` alone. Inline media pass through `scratch`.
    """

    def __init__(
        self,
        media: Path,
        beside: Path,
        *,
        scratch: Path,
        allowed_root: Path | None = None,
        allow_url: bool = False,
    ) -> None:
        self._media = media
        self._root = os.path.realpath(allowed_root) if allowed_root else None
        self._beside = os.path.realpath(beside)
        self._scratch, self._allow_url = scratch, allow_url
        self._made: dict[bytes, str] = {}
        self._of_shape: defaultdict[Shape, int] = defaultdict(int)

    def url(self, media: tuple[UrlType, str], folder: Path) -> str:
        part_type, url = media
        path = self._path(media, os.path.realpath(folder))
        named = url if is_inline(url) else path
        key = hashlib.sha256(f"{part_type} {named}".encode(errors="replace")).digest()
        if key not in self._made:
            self._made[key] = self._stand_in(path, MODALITY_OF[part_type])
        if is_inline(url):
            os.unlink(path)
        return self._made[key]

    def _stand_in(self, path: str, modality: Modality) -> str:
        seen = examine_whole(Item(path, modality))
        if isinstance(seen, Skipped):
            # The path would say what the file was called.
            raise Unresolved(one_line(f"a medium cannot be read: {seen.reason}"))
        shape = seen.shape
        if isinstance(shape, VideoShape) and (shape.width_px % 2 or shape.height_px % 2):
            raise Unresolved("no stand-in for a video of odd sides")
        self._media.mkdir(parents=True, exist_ok=True)
        made = write_blank(shape, self._of_shape[shape], self._media)
        self._of_shape[shape] += 1
        again = examine_whole(Item(str(made), modality))
        if isinstance(again, Skipped) or not _alike(shape, again.shape):
            made.unlink()
            raise Unresolved(f"no stand-in of the shape {shape} could be written")
        return os.path.relpath(os.path.realpath(made), self._beside)

    def _path(self, media: tuple[UrlType, str], folder: str) -> str:
        _, url = media
        if is_inline(url):
            return inline_file(*media, self._scratch)
        if remote := remote_url(url):
            if not self._allow_url:
                raise Unresolved("a medium is elsewhere, and is read with --allow-url alone")
            return remote
        try:
            return local_path(url, folder, self._root or folder)
        except Outside as error:
            raise UsageError(
                f"{one_line(str(error))} is outside the allowed root {self._root or folder}",
                hint="--allowed-local-media-path DIR",
            ) from error


def _alike(shape: Shape, made: Shape) -> bool:
    """Equal, but for the rate of a video, which a container rounds."""
    if not (isinstance(shape, VideoShape) and isinstance(made, VideoShape)):
        return shape == made
    sizes = [(one.num_frames, one.width_px, one.height_px) for one in (shape, made)]
    return sizes[0] == sizes[1] and math.isclose(shape.fps, made.fps, rel_tol=_RATE_OFF)


def without_words(message: Mapping[str, Any], urls: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The message with these media parts alone, and filler that counts as much as all it said."""
    role = message.get("role")
    bare = {"role": role if role in _ROLES else "user", "content": [*urls, text_part("")]}
    lacking = asked([message], {}).text_bytes - asked([bare], {}).text_bytes
    if lacking <= 0:
        return {**bare, "content": list(urls)} if urls else {**bare, "content": ""}
    return {**bare, "content": [*urls, text_part(_filler(lacking))]}


def without_names(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Of the fields that bear on length those that are numbers, and as many tools that count as
    much. What is given to the template beside that stays something that nothing bounds.
    """
    kept: dict[str, Any] = {
        name: value for name, value in fields.items() if isinstance(value, bool | int | float)
    }
    if not is_plain(fields):
        kept["chat_template_kwargs"] = {"redacted": True}
    tools = fields.get("tools")
    if isinstance(tools, list) and tools:
        kept["tools"] = _tools(asked([], {"tools": tools}).tool_bytes, len(tools))
    return kept


def _tools(wanted_bytes: int, count: int) -> list[dict[str, Any]]:
    made = [_tool("") for _ in range(count)]
    lacking = wanted_bytes - asked([], {"tools": made}).tool_bytes
    made[0] = _tool(_filler(max(0, lacking)))
    return made


def _tool(words: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", "description": words, "parameters": {}}}


def _filler(size_bytes: int) -> str:
    return (_FILLER * math.ceil(size_bytes / len(_FILLER)))[:size_bytes]
