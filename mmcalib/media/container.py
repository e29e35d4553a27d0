"""Opening a container with FFmpeg, in a bounded time."""

from __future__ import annotations

import av
from av.container import InputContainer

from mmcalib.media.failure import Unreadable

# Seconds in which FFmpeg must open a file, and find each packet. Real files take milliseconds; a
# damaged one of many gigabytes is searched to its end.
TIMEOUT_S = 4.0

# What FFmpeg opens that is no medium, but names other files and hosts.
_REFERENCES = ("sdp", "hls", "dash", "concat", "rtsp")


def open_container(path: str) -> InputContainer:
    """Open for reading. Raises `Unreadable` or one of `READ_ERRORS`."""
    container = av.open(path, metadata_errors="replace", timeout=TIMEOUT_S)
    if container.format.name.startswith(_REFERENCES):
        container.close()
        raise Unreadable("a playlist that names media elsewhere")
    return container
