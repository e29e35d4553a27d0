"""Files for what reads files only: members of archives and remote media, copied when needed."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Sequence
from pathlib import Path

from mmcalib.corpus.locations.location import Location
from mmcalib.corpus.locations.opening import local_copy
from mmcalib.errors import OutputError
from mmcalib.media.failure import read_errors

_URL_TYPES = ("image_url", "video_url", "audio_url")
_HANDLED = (None, "file", "data")

Message = dict[str, object]


@functools.cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    """Removed when the process ends."""
    return tempfile.TemporaryDirectory(prefix="mmcalib-media-")


@functools.cache
def local(path: str) -> str:
    """The path of a file with the bytes of the item at `path`: itself, or a copy.

    Also itself where it cannot be copied any more: then vLLM cannot load it, and that is said.
    Raises OutputError when there is no room for it.
    """
    if Location.of(path).is_file:
        return path
    try:
        return local_copy(path, Path(_folder().name))
    except OutputError as error:
        raise OutputError(error.message, hint="TMPDIR=DIR") from error
    except read_errors():
        return path


def local_messages(messages: Sequence[Message]) -> list[Message]:
    """The messages of a request, with a `file://` URL for every medium that was none."""
    return [_local(message) for message in messages]


def _local(message: Message) -> Message:
    content = message.get("content")
    if not isinstance(content, list):
        return message
    return {**message, "content": [_local_part(part) for part in content]}


def _local_part(part: object) -> object:
    if not isinstance(part, dict) or part.get("type") not in _URL_TYPES:
        return part
    kind = part["type"]
    url = part[kind].get("url") if isinstance(part[kind], dict) else part[kind]
    if not isinstance(url, str) or Location.of(url).scheme in _HANDLED:
        return part
    return {**part, kind: {"url": Path(local(url)).absolute().as_uri()}}
