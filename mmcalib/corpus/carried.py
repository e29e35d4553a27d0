"""Media of an export, as the requests made of it name them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol

from mmcalib.corpus.content_parts import UrlType
from mmcalib.corpus.urls import Unresolved, inline_file, is_inline


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
            return os.path.relpath(inline_file(*media, self._media), self._beside)
        if "://" in url or os.path.isabs(url) or url.startswith("file:"):
            return url
        if "\0" in url:
            raise Unresolved("not a path")
        return os.path.join(folder.absolute(), url)
