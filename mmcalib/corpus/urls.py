"""From the URL of a content part to a file on this disk that may be read."""

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
from mmcalib.media.sniff import FRAMES
from mmcalib.storage.location import BEHIND, NOT_ALLOWED, keep
from mmcalib.text import decode_base64

REMOTE = f"remote URL: {NOT_ALLOWED}"

# What `--data` may name. Any other scheme of fsspec may lead back to this disk.
_REMOTE_SCHEMES = ("http", "https", "s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "hf")

_FRAMES_SUFFIX = ".frames"
_FRAMES_TYPE = "video/jpeg"

_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*):", re.IGNORECASE)
# From elsewhere vLLM loads these (`load_from_url`, vllm/multimodal/media/connector.py, 0.32).
SERVED_SCHEMES = ("http", "https")
_UNSERVED = "vLLM loads no {}:// URL, only http, https, file and data"
# Longer than a name of a file may be.
_BARE_BASE64 = re.compile(r"[A-Za-z0-9+/]{300,}={0,2}")


class Unresolved(ValueError):  # noqa: N818 - a value in flight, turned into `Skipped`
    """The URL leads to no local file; the message says why."""


class Outside(ValueError):  # noqa: N818 - a value in flight, turned into UsageError
    """The file lies outside the allowed root; the message is its path."""


def local_path(url: str, folder: str, root: str, *, paths: bool = True) -> str:
    """The file's path, links resolved, for a `file:` URL, and where `paths` may stand for one, for
    one in `folder`. It need not exist. Raises `Unresolved`, and `Outside` unless it lies below
    `root`, itself a resolved path.
    """
    scheme = _SCHEME.match(url)
    if scheme and scheme[1].lower() == "file":
        path = file_url_path(url)
    elif scheme and url[scheme.end() :].startswith("//"):
        served = scheme[1].lower() in SERVED_SCHEMES
        raise Unresolved(REMOTE if served else _UNSERVED.format(scheme[1]))
    elif _BARE_BASE64.fullmatch(url[:400]):
        raise Unresolved("base64 without its header: write data:image/png;base64, before it")
    elif not paths:
        raise Unresolved("a path, where vLLM takes URLs alone: file:///, data: or https://")
    else:
        path = url
    if not path or "\0" in path:
        raise Unresolved("not a path")
    try:
        resolved = _real(os.path.join(folder, path))
    except (OSError, ValueError) as error:
        raise Unresolved(f"not a path: {error}") from error
    if resolved != root and not resolved.startswith(root.rstrip("/") + "/"):
        raise Outside(resolved)
    return resolved


# Requests name many files of few folders, and each look at a path looks at all its parts.
_real_folder = functools.lru_cache(maxsize=4096)(os.path.realpath)


def _real(path: str) -> str:
    folder, name = os.path.split(path)
    if name in ("", ".", ".."):
        return os.path.realpath(path)
    path = os.path.join(_real_folder(folder), name)
    return os.path.realpath(path) if os.path.islink(path) else path


def file_url_path(url: str) -> str:
    """The absolute path that a `file:` URL names, as vLLM finds it (`_load_file_url`,
    vllm/multimodal/media/connector.py, 0.32): what follows `#` or `?` is not part of it, and a host
    is a folder in front of it. Raises `Unresolved`.
    """
    from urllib3.util import parse_url

    try:
        parsed = parse_url(url)
    except ValueError as error:
        raise Unresolved(f"not a URL: {error}") from error
    if parsed.netloc:
        said = f"file URL with the host {parsed.netloc}, which vLLM takes for a folder"
        raise Unresolved(f"{said}: write file:///")
    return url2pathname(parsed.path or "")


def is_inline(url: str) -> bool:
    """Whether the URL carries the bytes itself."""
    return url[:5].lower() == "data:"


def remote_url(url: str, schemes: Sequence[str] = _REMOTE_SCHEMES) -> str | None:
    """What may be fetched from elsewhere, its scheme in small letters. Raises `Unresolved`."""
    scheme = _SCHEME.match(url)
    if not scheme or scheme[1].lower() not in schemes or url[scheme.end() :][:2] != "//":
        return None
    if BEHIND in url:
        raise Unresolved(f"remote URL with {BEHIND}")
    return scheme[0].lower() + url[scheme.end() :]


def decode_data_url(url: str) -> tuple[bytes, str]:
    """The bytes of a `data:` URL and an extension, as strictly as vLLM. Raises `Unresolved`."""
    header, comma, payload = url[5:].partition(",")
    if not comma:
        raise Unresolved("data URL without a comma")
    if not header.endswith(";base64"):
        raise Unresolved("data URL that is not ;base64, vLLM takes no other")
    extension = mimetypes.guess_extension(header.partition(";")[0].strip().lower()) or ""
    try:
        data = decode_base64(payload)
    except ValueError as error:
        why = next((why for mark, why in _NO_BASE64.items() if re.search(mark, payload)), _DAMAGED)
        raise Unresolved(f"base64 {why}") from error
    if drawn := _DRAWN.match(data):
        kind = "PDF" if drawn[1] else "SVG"
        raise Unresolved(f"{kind}, which vLLM does not read: render it to PNG")
    return data, extension


# What makes a payload no base64, most telling first.
_NO_BASE64 = {
    r"litellm_truncated": "that LiteLLM cut (MAX_STRING_LENGTH_PROMPT_IN_DB)",
    r"\s": "with line breaks or blanks in it, which vLLM refuses",
    r"[-_]": "with - and _ in it, which vLLM refuses for + and /",
    r"\.\.\.": "that was cut",
    r"=$": "with too many or too few = at its end",
}
_DAMAGED = "that is damaged, or lacks = at its end"
_DRAWN = re.compile(rb"\s{0,9}(?:(%PDF-)|<[?!]?(?:.{0,999}<)?svg)", re.DOTALL)


def sent_frames(url: str) -> bytes | None:
    """A clip's frames in a `data:` URL: the URL, its header as `sniff` knows it; else None."""
    header, _, payload = url[5:].partition(",")
    kind, *_, encoding = header.split(";")
    if kind.lower() != _FRAMES_TYPE or encoding != "base64":
        return None
    return FRAMES + payload.encode(errors="replace")


def inline_file(part_type: UrlType, url: str, folder: Path) -> str:
    """The file below `folder`, named by its SHA-256, that holds what a `data:` URL carries.
    Raises `Unresolved` and OutputError.
    """
    if part_type == PART_OF["video"] and (frames := sent_frames(url)):
        data, extension = frames, _FRAMES_SUFFIX
    else:
        data, extension = decode_data_url(url)
    path = folder / f"{hashlib.sha256(data).hexdigest()}{extension}"
    return os.path.realpath(path) if path.exists() else keep(io.BytesIO(data), path, len(data))


def served_url(path: str) -> str:
    """How a request to a server that reads this disk names a file. Raises OSError."""
    with open(path, "rb") as file:
        if file.read(len(FRAMES)) == FRAMES:
            return (FRAMES + file.read()).decode()
    return Path(path).absolute().as_uri()
