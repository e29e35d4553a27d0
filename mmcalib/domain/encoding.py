"""What of a file, beside its shape, decides whether a server takes it."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from mmcalib.domain.shapes import Modality, Shape
from mmcalib.sizes import MIB


@dataclass(frozen=True, slots=True, order=True)
class Encoding:
    """How a file holds its shape; fields that do not bear on its modality keep their defaults.

    `file_mib` is rounded up: vLLM's limits on files are whole MiB. `codec` is FFmpeg's name of what
    the video stream is in. Of sound, `channels`, and `sample_format` as FFmpeg decodes it, empty
    where libsndfile does, to float32. `promised_frames` is what the header of a video says that
    has fewer, 0 where it has them all. `sent_frames`: a client sent the frames themselves.
    `fetched`: the server has it from a URL of the web. `transport_stream`: an MPEG-TS, such as the
    segments of HLS. `cut_short`: the end of a picture is missing, where anybody looked.
    """

    file_mib: int = 1
    codec: str = ""
    channels: int = 0
    sample_format: str = ""
    promised_frames: int = 0
    unpromised: bool = False
    lone_frame: bool = False
    sent_frames: bool = False
    fetched: bool = False
    transport_stream: bool = False
    cut_short: bool = False


PLAIN = Encoding()
"""Of a small picture: there is nothing to say of it, and most items are such."""


_PLAIN = asdict(PLAIN)


def told(encoding: Encoding) -> dict[str, int | str]:
    """What is not `PLAIN` in it, by name: all that is written of one."""
    return {n: value for n, plain in _PLAIN.items() if (value := getattr(encoding, n)) != plain}


def mib(size_bytes: int) -> int:
    """Whole MiB that hold so many bytes, at least one."""
    return max(1, -(-size_bytes // MIB))


@dataclass(frozen=True, slots=True)
class Encoded:
    """A shape, and how a file holds it."""

    shape: Shape
    encoding: Encoding = PLAIN

    @property
    def modality(self) -> Modality:
        return self.shape.modality


Given = Shape | Encoded
"""An item to be judged: by its shape alone, or by its file."""


def encoded(given: Given) -> Encoded:
    """A bare shape is one that some ordinary file holds."""
    return given if isinstance(given, Encoded) else Encoded(given)
