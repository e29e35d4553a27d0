"""Prepare media files for vLLM, which decodes without limits: a process with limits on time and
memory decodes each file first. Members of archives and remote media are copied.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from urllib.parse import unquote

from mmcalib.census.executor import TIMEOUT_S, FunctionRef, ProbeTask
from mmcalib.census.pool import LocalPool
from mmcalib.corpus.chat import MODALITY_OF, ChatRequest
from mmcalib.corpus.urls import local_file_url
from mmcalib.domain.items import Item, Skipped, decode_line, is_transient
from mmcalib.domain.shapes import Modality
from mmcalib.errors import OutputError
from mmcalib.files import Scratch
from mmcalib.storage.location import Location, is_local, item_version

# Returns, for items of a modality and a path, the file that vLLM may read.
Files = Callable[[Iterable[tuple[Modality, str]]], list[str | Skipped]]

_FILE = "file://"

# An item, the version of its bytes, and the time limit of its decoding in seconds.
_Request = tuple[Item, str, float]

# Files prepared so far: requests repeat items.
_prepared: dict[_Request, str | Skipped] = {}


@functools.cache
def _folder() -> Scratch:
    """Return the folder for copies, which is removed when the process ends."""
    return Scratch()


def prepare_files(
    media: Iterable[tuple[Modality, str]], timeout_s: float = TIMEOUT_S, *, decoded: bool = False
) -> list[str | Skipped]:
    """Return per item the path of a file that vLLM may read, or `Skipped` if decoding fails or
    exceeds `timeout_s`. Local files may be `decoded` already. Raises OutputError if the disk fills.
    """
    items = [Item(path, modality) for modality, path in media]
    requests = [(item, item_version(item), timeout_s) for item in items]
    for is_decoded in (True, False):
        some = [one for one in requests if (decoded and is_local(one[0].path)) == is_decoded]
        _decode_missing(some, timeout_s, is_decoded)
    return [_prepared[one] for one in requests]


def _decode_missing(requests: Sequence[_Request], timeout_s: float, is_decoded: bool) -> None:
    if is_decoded:
        local = (one for one in requests if Location.of(one[0].path).is_file)
        _prepared.update((one, one[0].path) for one in local)
    missing = [one for one in dict.fromkeys(requests) if one not in _prepared]
    if not missing:
        return
    more = (str(_folder().path), "known" if is_decoded else "")
    decode = FunctionRef("mmcalib.media.decode", "decode_for_vllm", more)
    with LocalPool(decode, timeout_s=timeout_s) as pool:
        waits = [pool.submit([ProbeTask(item)]) for item, *_ in missing]
        try:
            for one, wait in zip(missing, waits, strict=True):
                (answer,) = wait()
                if answer.line.startswith("/"):
                    _prepared[one] = answer.line
                else:
                    skipped = decode_line(one[0].path, answer.line)
                    assert isinstance(skipped, Skipped)
                    _prepared[one] = replace(skipped, out_of_reach=is_transient(answer.line))
        except OutputError as error:
            raise OutputError(error.message, hint="TMPDIR=DIR") from error


def prepare_requests(
    requests: Sequence[ChatRequest], files: Files = prepare_files
) -> list[ChatRequest | Skipped]:
    """Return each request with `file://` URLs for its media, or its first skipped medium."""
    media = [[(MODALITY_OF[kind], _path(url)) for kind, url in one.media()] for one in requests]
    prepared = iter(files(itertools.chain.from_iterable(media)))
    results: list[ChatRequest | Skipped] = []
    for request, own in zip(requests, media, strict=True):
        paths = list(itertools.islice(prepared, len(own)))
        bad = next((path for path in paths if isinstance(path, Skipped)), None)
        urls = (local_file_url(path) for path in paths if isinstance(path, str))
        results.append(bad or request.replace_media(urls))
    return results


def _path(url: str) -> str:
    """Return the path of a `file://` URL from `url_of`, or any other URL unchanged."""
    if not url.startswith(_FILE):
        return url
    return unquote(url.removeprefix(_FILE), errors="surrogateescape")
