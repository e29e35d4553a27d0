"""Opening a container with FFmpeg, in a bounded time."""

from __future__ import annotations

import os
from typing import Any

import av
from av.container import InputContainer

from mmcalib.media.bounded import MOST_PROBED_S, Medium
from mmcalib.media.failure import Unreadable

# Where each read may be a request to another machine.
_REMOTE_TIMEOUT_S = 60.0

# Protocols by which a medium may make FFmpeg open another: none. A path is opened by one itself.
_NOTHING_ELSE = {"protocol_whitelist": "none"}
_FILES_ONLY = {"protocol_whitelist": "file"}

# One packet, of any stream, is the least that FFmpeg looks at.
_HEADER_ONLY = {"probesize": "32"}

# What FFmpeg opens that is no medium, but names other files and hosts.
_REFERENCES = ("sdp", "hls", "dash", "concat", "rtsp")
# Metadata that is no UTF-8 is no damage: PyAV 19 reads it so by itself, and takes no such option.
_LENIENT: Any = {"metadata_errors": "replace"} if int(av.__version__.split(".")[0]) < 19 else {}
_ELSEWHERE = "a playlist that names media elsewhere"


def open_container(medium: Medium, *, whole: bool = True) -> InputContainer:
    """Open for reading. Raises `Unreadable` or one of `read_errors`.

    `whole=False` reads the header only: what no header says is then unknown, or wrong.
    """
    file = medium if isinstance(medium, str) else None
    if not isinstance(medium, str):
        medium.seek(0)
    try:
        container: InputContainer = av.open(
            medium,
            "r",
            timeout=MOST_PROBED_S if file else _REMOTE_TIMEOUT_S,
            options=(_FILES_ONLY if file else _NOTHING_ELSE) | ({} if whole else _HEADER_ONLY),
            **_LENIENT,
        )
    except FileNotFoundError as error:
        if file and os.path.exists(file):  # it is another file that is not there
            raise Unreadable(_ELSEWHERE) from error
        raise
    if container.format.name.startswith(_REFERENCES):
        container.close()
        raise Unreadable(_ELSEWHERE)
    return container
