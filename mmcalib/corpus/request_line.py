"""One chat request, wherever it comes from, and the files that it names."""

from __future__ import annotations

import os
from pathlib import Path

from mmcalib.corpus.asking import asked
from mmcalib.corpus.chat import MODALITY_OF, BadRequest, ChatMessage, UrlType, parse_line
from mmcalib.corpus.content_parts import url_part
from mmcalib.corpus.urls import (
    FRAMES_SUFFIX,
    Outside,
    Unresolved,
    decode_data_url,
    is_inline,
    local_path,
    materialise,
    remote_url,
    sent_frames,
)
from mmcalib.domain.items import Item, Prompt, Skipped
from mmcalib.errors import UsageError
from mmcalib.locations.location import Location, url_of
from mmcalib.wording import one_line


class RequestLines:
    """Reads requests whose relative paths start at `folder`, a resolved path.

    Media must lie below `allowed_root` (default: that folder), links resolved. Inline media are
    written to `scratch` and are items like the others. Remote media are items by their URLs with
    `allow_url`, and otherwise refused.
    """

    def __init__(
        self,
        folder: str,
        *,
        allowed_root: str | Path | None = None,
        scratch: Path,
        allow_url: bool = False,
    ) -> None:
        self._folder = folder
        self._root = os.path.realpath(allowed_root) if allowed_root else folder
        self._scratch = scratch
        self._allow_url = allow_url

    def prompt(self, origin: str, line: bytes) -> Prompt | Skipped:
        """The request, or why it is none. Raises UsageError for a file outside the root."""
        items: list[Item] = []
        replayable: list[dict[str, object]] = []
        try:
            request = parse_line(line)
            for message, raw in zip(request.messages, request.written, strict=True):
                named = [media and self.item(media, origin) for media in message.media]
                items += [item for item in named if item]
                replayable.append(_with_file_urls(message, raw, named))
        except (BadRequest, Unresolved) as error:
            return Skipped(origin, one_line(str(error)))
        for item in items:
            if not exists(item):
                return Skipped(origin, one_line(f"names a missing file: {item.path}"))
        text = "\n".join(words for message in request.messages for words in message.words)
        found = asked(request.written, request.fields)
        return Prompt(origin, tuple(items), text, replayable, request.fields, found)

    def item(self, media: tuple[UrlType, str], origin: str) -> Item:
        """The file that one part names. Raises `Unresolved`, UsageError and OutputError."""
        part_type, url = media
        if is_inline(url) and part_type == "video_url" and (frames := sent_frames(url)):
            path = materialise(frames, FRAMES_SUFFIX, self._scratch)
        elif is_inline(url):
            path = materialise(*decode_data_url(url), self._scratch)
        elif self._allow_url and (remote := remote_url(url)):
            path = remote
        else:
            try:
                path = local_path(url, self._folder, self._root)
            except Outside as error:
                raise UsageError(
                    f"{origin}: {one_line(str(error))} is outside the allowed root {self._root}",
                    hint="--allowed-local-media-path DIR",
                ) from error
        return Item(path, MODALITY_OF[part_type])


def exists(item: Item) -> bool:
    """Whether there is such a file; of a remote one only the probe can tell."""
    return not Location.of(item.path).is_file or os.path.exists(item.path)


def _with_file_urls(
    message: ChatMessage, written: dict[str, object], items: list[Item | None]
) -> dict[str, object]:
    """The message as written, but for its media parts; `items` has one entry per part."""
    raw = written.get("content")
    if not isinstance(raw, list):
        return written
    content: list[object] = [
        url_part(media[0], url_of(item.path)) if media and item else part
        for part, media, item in zip(raw, message.media, items, strict=True)
    ]
    return {**written, "content": content}
