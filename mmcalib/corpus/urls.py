"""Resolve the URL of a content part to a local file that may be read."""

from __future__ import annotations

import functools
import hashlib
import io
import mimetypes
import os
import re
from collections.abc import Sequence
from pathlib import Path
from urllib.request import url2pathname

from mmcalib.corpus.chat import PART_OF, UrlType
from mmcalib.corpus.lines import BadRequest
from mmcalib.files import is_within
from mmcalib.media.sniff import FRAMES
from mmcalib.storage.access import write_copy
from mmcalib.storage.location import MEMBER_MARK, NOT_ALLOWED
from mmcalib.text import decode_base64

REMOTE = f"remote URL: {NOT_ALLOWED}"
OUTSIDE = "outside the allowed folder"

# Schemes for `--data`. fsspec's other schemes may lead back to the local disk.
_REMOTE_SCHEMES = ("http", "https", "s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "hf")

_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*):", re.IGNORECASE)
# Remote schemes of vLLM (`load_from_url`, vllm/multimodal/media/connector.py, 0.32).
SERVED_SCHEMES = ("http", "https")
_UNSERVED = "vLLM does not load {}:// URLs, only http, https, file and data"
# Longer than a file name can be.
_BARE_BASE64 = re.compile(r"[A-Za-z0-9+/]{300,}={0,2}")


class OutsideRoot(ValueError):  # noqa: N818 - a value in flight
    """The file is outside the allowed root; the message is its path."""


def is_path(url: str) -> bool:
    """True without a scheme."""
    return not _SCHEME.match(url)


def local_path(url: str, folder: str, root: str, *, paths: bool = True) -> str:
    """Return the path of a `file:` URL, or with `paths` of a path in `folder`, links resolved.

    The file need not exist. Raises `BadRequest`, and `OutsideRoot` if not below `root`, resolved.
    """
    scheme = _SCHEME.match(url)
    if scheme and scheme[1].lower() == "file":
        path = file_url_path(url)
    elif scheme and url[scheme.end() :].startswith("//"):
        served = scheme[1].lower() in SERVED_SCHEMES
        raise BadRequest(REMOTE if served else _UNSERVED.format(scheme[1]))
    elif _BARE_BASE64.fullmatch(url[:400]):
        raise BadRequest("base64 without a header: put data:image/png;base64, before it")
    elif not paths:
        raise BadRequest("vLLM accepts no paths, only URLs: file:///, data: or https://")
    else:
        path = url
    if not path or "\0" in path:
        raise BadRequest("not a path")
    try:
        resolved = _resolve(os.path.join(folder, path))
    except (OSError, ValueError) as error:
        raise BadRequest(f"not a path: {error}") from error
    if not is_within(resolved, root):
        raise OutsideRoot(resolved)
    return resolved


# Requests name many files in few folders, and `realpath` checks every part of a path.
_resolve_folder = functools.lru_cache(maxsize=4096)(os.path.realpath)


def _resolve(path: str) -> str:
    folder, name = os.path.split(path)
    if name in ("", ".", ".."):
        return os.path.realpath(path)
    path = os.path.join(_resolve_folder(folder), name)
    return os.path.realpath(path) if os.path.islink(path) else path


def file_url_path(url: str) -> str:
    """Return the absolute path of a `file:` URL, as vLLM reads it. Raises `BadRequest`.

    vLLM drops everything after `#` or `?`, and treats a host as the path's first folder
    (`_load_file_url`, vllm/multimodal/media/connector.py, 0.32).
    """
    from urllib3.util import parse_url

    try:
        parsed = parse_url(url)
    except ValueError as error:
        raise BadRequest(f"not a URL: {error}") from error
    if parsed.netloc:
        host = f"vLLM reads {parsed.netloc} as a folder, so write file:///"
        raise BadRequest(f"file URL with a host: {host}")
    return url2pathname(parsed.path or "")


def is_inline(url: str) -> bool:
    """True for a `data:` URL, which carries the bytes."""
    return url[:5].lower() == "data:"


def remote_url(url: str, schemes: Sequence[str] = _REMOTE_SCHEMES) -> str | None:
    """Return a remote URL with its scheme in lowercase; None for others. Raises `BadRequest`."""
    scheme = _SCHEME.match(url)
    if not scheme or scheme[1].lower() not in schemes or url[scheme.end() :][:2] != "//":
        return None
    if MEMBER_MARK in url:
        raise BadRequest(f"remote URL contains {MEMBER_MARK}")
    return scheme[0].lower() + url[scheme.end() :]


def decode_data_url(url: str, *, frames: bool = True) -> tuple[bytes, str]:
    """Decode a `data:` URL to bytes and an extension, as strictly as vLLM. Raises `BadRequest`.

    Encoded `frames` stay so, behind the header that `sniff` expects.
    """
    header, comma, payload = url[5:].partition(",")
    if not comma:
        raise BadRequest("data URL has no comma")
    if not header.endswith(";base64"):
        raise BadRequest("data URL is not ;base64, which vLLM requires")
    kind = header.partition(";")[0].lower()
    if frames and kind == "video/jpeg":
        return FRAMES + payload.encode(errors="replace"), ".frames"
    extension = mimetypes.guess_extension(kind.strip()) or ""
    try:
        data = decode_base64(payload)
    except ValueError as error:
        flaws = (why for mark, why in _BASE64_FLAWS.items() if re.search(mark, payload))
        raise BadRequest(f"base64 {next(flaws, _DAMAGED)}") from error
    if vector := _VECTOR_IMAGE.match(data):
        form = "PDF" if vector[1] else "SVG"
        raise BadRequest(f"vLLM does not read {form}: convert it to PNG")
    return data, extension


# Flaws of invalid base64, the most specific first.
_BASE64_FLAWS = {
    r"litellm_truncated": "was truncated by LiteLLM (raise MAX_STRING_LENGTH_PROMPT_IN_DB)",
    r"\.\.\.": "was truncated",
    r"\s": "contains whitespace, which vLLM rejects",
    r"[-_]": "contains - or _, which vLLM rejects: use + and /",
    r"=$": "ends with too many or too few =",
}
_DAMAGED = "is damaged, or its final = are missing"
_VECTOR_IMAGE = re.compile(rb"\s{0,9}(?:(%PDF-)|<[?!]?(?:.{0,999}<)?svg)", re.DOTALL)


def write_inline_file(part_type: UrlType, url: str, folder: Path) -> str:
    """Write a `data:` URL's bytes to a file in `folder` named by their SHA-256; return its path.
    Raises `BadRequest` and OutputError.
    """
    data, extension = decode_data_url(url, frames=part_type == PART_OF["video"])
    path = folder / f"{hashlib.sha256(data).hexdigest()}{extension}"
    return (
        os.path.realpath(path) if path.exists() else write_copy(io.BytesIO(data), path, len(data))
    )


def local_file_url(path: str) -> str:
    """Return the URL of a file for a server that reads this disk. Raises OSError."""
    with open(path, "rb") as file:
        if file.read(len(FRAMES)) == FRAMES:
            return (FRAMES + file.read()).decode()
    return Path(path).absolute().as_uri()
