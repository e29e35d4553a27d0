"""The shape of a clip whose frames a client sent: `data:video/jpeg;base64,a,b,c`."""

from __future__ import annotations

import base64
import binascii
import contextlib
import io
from collections.abc import Iterator
from itertools import pairwise
from typing import BinaryIO, cast

from mmcalib.domain.encoding import Encoded, Encoding
from mmcalib.domain.shapes import VideoShape
from mmcalib.media.bounded import Medium
from mmcalib.media.failure import Unreadable
from mmcalib.media.image import image_shape
from mmcalib.media.sniff import FRAMES

# vLLM's words for a clip without a rate (`load_base64`, vllm/multimodal/media/video.py, 0.32).
_FPS = 1.0

# A request's line is at most 48 MiB long.
_MOST_BYTES = 64 << 20


def frames_shape(file: BinaryIO) -> Encoded:
    """All frames, one a second; they must be of one size. Raises `Unreadable`."""
    sizes = [image_shape(io.BytesIO(picture), any_format=True) for picture in _pictures(file)]
    if any(one != other for one, other in pairwise(sizes)):
        raise Unreadable("frames of different sizes, which vLLM does not take")
    frames = len(sizes)
    shape = VideoShape(frames, _FPS, frames / _FPS, sizes[0].width_px, sizes[0].height_px)
    return Encoded(shape, Encoding(sent_frames=True))


def sent_frames(medium: Medium) -> list[bytes] | None:
    """The pictures of such a clip, None for any other video. Raises `Unreadable`."""
    with contextlib.ExitStack() as opened:
        file = medium if not isinstance(medium, str) else opened.enter_context(open(medium, "rb"))
        file.seek(0)
        if file.read(len(FRAMES)) != FRAMES:
            return None
        return list(_pictures(cast("BinaryIO", file)))


def _pictures(file: BinaryIO) -> Iterator[bytes]:
    file.seek(len(FRAMES))
    text = file.read(_MOST_BYTES + 1)
    if len(text) > _MOST_BYTES:
        raise Unreadable(f"frames of more than {_MOST_BYTES >> 20} MiB")
    for part in text.split(b","):
        try:
            yield base64.b64decode(part, validate=True)
        except binascii.Error as error:
            raise Unreadable(f"base64: {error}") from error
