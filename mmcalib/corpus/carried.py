"""Media of an export, as the requests made of it name them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol

from mmcalib.corpus.chat import UrlType
from mmcalib.corpus.urls import (
    FRAMES_SUFFIX,
    Unresolved,
    decode_data_url,
    is_inline,
    materialise,
    sent_frames,
)
from mmcalib.wording import one_line


class Carrier(Protocol):
    """What becomes of the media that requests name."""

    def url(self, media: tuple[UrlType, str], folder: Path, /) -> str:
        """What the new request names instead; relative paths start at `folder`, that of the export.
        Raises `Unresolved`, OutputError and UsageError.
        """


class ByReference:
    """Files and URLs stay where they are. Inline media are written once below `media`, each by the
    SHA-256 of its bytes, and named relative to `beside`, where the requests will be.
    """

    def __init__(self, media: Path, beside: Path) -> None:
        self._media, self._beside = media, os.path.realpath(beside)

    def url(self, media: tuple[UrlType, str], folder: Path) -> str:
        _, url = media
        if is_inline(url):
            path = inline_file(media, self._media)
            return os.path.relpath(path, self._beside)
        if "://" in url or os.path.isabs(url) or url.startswith("file:"):
            return url
        if "\0" in url:
            raise Unresolved("not a path")
        return os.path.join(folder.absolute(), url)


def inline_file(media: tuple[UrlType, str], folder: Path) -> str:
    """The file below `folder` that holds what a `data:` URL carries. Raises `Unresolved` and
    OutputError.
    """
    part_type, url = media
    if part_type == "video_url" and (frames := sent_frames(url)):
        return materialise(frames, FRAMES_SUFFIX, folder)
    try:
        return materialise(*decode_data_url(url), folder)
    except Unresolved as error:
        raise Unresolved(one_line(str(error))) from error
