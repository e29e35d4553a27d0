"""Tell what a file is from its first bytes."""

from __future__ import annotations

import codecs
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Final, Literal

from mmcalib.domain.shapes import Modality
from mmcalib.storage.location import MEMBER_MARK

Kind = Literal["empty", "image", "container", "audio", "frames", "text", "unknown"]

# A clip that a client sent as frames: the `data:` URL itself, which only vLLM reads.
FRAMES = b"data:video/jpeg;base64,"

# Images that are clips if a request declares them so.
ANIMATED = (b"GIF87a", b"GIF89a")
# The chunk of an animated PNG, before its pixels.
APNG = b"\0\0\0\x08acTL"

CURSOR = b"\0\0\2\0"

# Enough for three MPEG-TS packets of 192 bytes and for a fair look at text.
HEAD_BYTES = 1024

_IMAGE = (
    b"\xff\xd8\xff",  # JPEG, MPO
    b"\x89PNG\r\n\x1a\n",
    *ANIMATED,
    b"II*\0",  # TIFF
    b"MM\0*",
    b"II+\0",  # BigTIFF
    b"MM\0+",
    b"\0\0\0\x0cjP  \r\n\x87\n",  # JPEG 2000
    b"\xff\x4f\xff\x51",
    b"\0\0\1\0",  # ICO
    CURSOR,
    b"8BPS",
    b"DDS ",
    b"qoif",
    b"icns",
    b"\x01\xda\0",  # SGI
    b"\x01\xda\1",
    b"\x59\xa6\x6a\x95",  # Sun raster
)
_CONTAINER = (
    b"\x1aE\xdf\xa3",  # Matroska, WebM
    b"OggS",
    b"\x30\x26\xb2\x75\x8e\x66\xcf\x11",  # ASF
    b"FLV\1",
    b"\0\0\1\xba",  # MPEG-PS
    b"\0\0\1\xb3",  # MPEG video
    b"\0\0\0\1\x67",  # H.264
    b"\0\0\0\1\x40",  # HEVC
    b"DKIF",  # IVF
    b"YUV4MPEG2 ",
    b".RMF",
    b"\x06\x0e+4\2\5\1\1\r\1\2\1\1\2",  # MXF
)
_AUDIO = (
    *(b"ID3", b"fLaC", b"RF64", b".snd", b"#!AMR", b"caff", b"wvpk", b"MAC ", b"\x0bw", b"TTA1"),
    *(b"NIST_1A\n", b"2BIT", b" paf", b"fap ", b"PVF1\n", b"ALawSoundFile**", b"Extended Instrum"),
    *(b"\x64\xa3\1\0", b"\x64\xa3\2\0", b"\x64\xa3\3\0", b"\0\1\xa3\x64"),  # IRCAM
    b"riff\x2e\x91\xcf\x11",  # Wave64
    b"Creative Voice File\x1a",  # VOC
)
_RIFF = {b"WEBP": "image", b"AVI ": "container", b"WAVE": "audio"}
_BOX_TYPES = (b"ftyp", b"moov", b"mdat", b"free", b"skip", b"wide", b"pnot")
_STILL_BRANDS = (b"avif", b"avis", b"heic", b"heix", b"heim", b"heis", b"mif1", b"msf1")
# A PCX header has a signature byte, a version, run lengths, and the bits per pixel.
_PCX_HEADER_BYTES = 128
_PCX_VERSIONS, _PCX_BITS = (0, 2, 3, 4, 5), (1, 2, 4, 8)
_BYTE_ORDER_MARKS = (codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_TEXT_BYTES = bytes(byte for byte in range(256) if byte >= 0x20 or byte in b"\t\n\v\f\r\b\x1b")
_TS_SYNC = 0x47

# The header of an Ogg page (RFC 3533): the flag of a stream's first page, and the data's offset.
_OGG_FLAGS, _OGG_BEGINS, _OGG_SEGMENTS, _OGG_HEADER_BYTES = 5, 2, 26, 27
_OGG_SOUND = (b"\x01vorbis", b"OpusHead", b"\x7fFLAC")


def sniff(head: bytes) -> Kind:
    """Return the kind of a file that starts with `head`. A container may hold only audio."""
    if not head:
        return "empty"
    if head.startswith(FRAMES):
        return "frames"
    if head.startswith(_IMAGE):
        return "image"
    if head.startswith(_CONTAINER):
        return "audio" if head.startswith(b"OggS") and _is_ogg_sound(head) else "container"
    if head.startswith(_AUDIO):
        return "audio"
    if head[:4] == b"RIFF":
        return _RIFF.get(head[8:12], "unknown")  # type: ignore[return-value]
    if head[:4] == b"FORM" and head[8:12] in (b"AIFF", b"AIFC", b"8SVX", b"16SV"):
        return "audio"
    if head[:1] == b"P" and head[1:2] in b"1234567fF" and head[2:3].isspace():
        return "image"
    if _is_text(head):
        return "text"
    return _match_short_signatures(head)


def is_media(head: bytes) -> bool:
    """True if a file that starts with `head` may hold media; `head` may be longer than needed."""
    return sniff(head[:HEAD_BYTES]) in ("image", "container", "audio", "frames")


def _match_short_signatures(head: bytes) -> Kind:
    """Match signatures of a few bits, which are reliable only in files that are not text."""
    is_pcx = head[:1] == b"\n" and len(head) >= _PCX_HEADER_BYTES
    is_pcx = is_pcx and head[1] in _PCX_VERSIONS and head[2] == 1 and head[3] in _PCX_BITS
    if head[:2] == b"BM" or is_pcx:
        return "image"
    if head[4:8] in _BOX_TYPES:
        return "image" if head[4:8] == b"ftyp" and head[8:12] in _STILL_BRANDS else "container"
    for packet, start in ((188, 0), (192, 4)):
        if set(head[start : start + 3 * packet : packet]) == {_TS_SYNC}:
            return "container"
    if head[0] == 0xFF and len(head) > 1 and head[1] & 0xE0 == 0xE0:
        return "audio"  # an MPEG audio or ADTS frame
    return "unknown"


def _is_text(head: bytes) -> bool:
    if head.startswith(_BYTE_ORDER_MARKS):
        return True
    # Most binary files have a zero early, so search it first.
    if 0 in head or head.translate(None, _TEXT_BYTES):
        return False
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head, final=len(head) < HEAD_BYTES)
    except UnicodeDecodeError:
        return False
    return True


def _is_ogg_sound(head: bytes) -> bool:
    """True if the first stream is audio, and the second page does not start another."""
    if len(head) <= _OGG_SEGMENTS:
        return False
    data = _OGG_HEADER_BYTES + head[_OGG_SEGMENTS]
    page = data + sum(head[_OGG_HEADER_BYTES:data])
    second = head[page : page + _OGG_HEADER_BYTES]
    return (
        head.startswith(_OGG_SOUND, data)
        and second.startswith(b"OggS")
        and len(second) > _OGG_FLAGS
        and not second[_OGG_FLAGS] & _OGG_BEGINS
    )


EXTENSIONS: Final[Mapping[Modality, tuple[str, ...]]] = {
    "image": (
        *("jpg", "jpeg", "jpe", "jfif", "png", "ppm", "pgm", "pbm", "pnm", "gif", "webp", "bmp"),
        *("tif", "tiff", "avif", "heic", "heif", "jp2", "ico", "psd", "tga"),
    ),
    "video": (
        *("mp4", "m4v", "mov", "avi", "mkv", "webm", "mpg", "mpeg", "ogv", "wmv", "flv", "ts"),
        *("mts", "m2ts", "3gp", "mjpeg", "h264", "mxf"),
    ),
    "audio": (
        *("wav", "mp3", "flac", "ogg", "oga", "opus", "m4a", "aac", "aif", "aiff", "wma", "amr"),
        *("au", "caf", "mka", "weba"),
    ),
}
MEDIA_EXTENSIONS: Final = frozenset(one for every in EXTENSIONS.values() for one in every)
# Formats without a signature -> their kind, by the file's extension.
KIND_OF_EXTENSION: Final[Mapping[str, Kind]] = {
    **dict.fromkeys(("tga", "xbm", "xpm"), "image"),
    "htk": "audio",
}


def extension_of(path: str) -> str:
    """Return the extension of an item's name in lowercase, without the dot; empty if none."""
    return PurePosixPath(path.partition(MEMBER_MARK)[0]).suffix.lower().removeprefix(".")
