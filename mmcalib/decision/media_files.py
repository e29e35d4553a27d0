"""Media as vLLM gets them: files, each decoded before in a process that has a bound of time and
memory, as vLLM has none. Members of archives and remote media are copied for it.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from urllib.parse import unquote

from mmcalib.census.executor import TIMEOUT_S, Named, ProbeTask
from mmcalib.census.pool import LocalPool
from mmcalib.corpus.chat import MODALITY_OF, ChatRequest
from mmcalib.corpus.urls import served_url
from mmcalib.domain.items import Item, Skipped, decode, may_pass
from mmcalib.domain.shapes import Modality
from mmcalib.errors import OutputError
from mmcalib.files import Scratch
from mmcalib.storage.location import Location, is_here, version

# From items, each a modality and a path, to what vLLM may read of each.
Files = Callable[[Iterable[tuple[Modality, str]]], list[str | Skipped]]

_FILE = "file://"

# An item, the bytes that it had, and the seconds in which it must be decoded.
_Request = tuple[Item, str, float]

# What was handed over before, and where: requests name an item again and again.
_known: dict[_Request, str | Skipped] = {}


@functools.cache
def _folder() -> Scratch:
    """Removed when the process ends."""
    return Scratch()


def files(
    media: Iterable[tuple[Modality, str]], timeout_s: float = TIMEOUT_S, *, decoded: bool = False
) -> list[str | Skipped]:
    """Per item the path of a file that vLLM may read; `Skipped` where it is not decoded in
    `timeout_s`. Local ones may be `decoded` before. Raises OutputError where copies find no room.
    """
    items = [Item(path, modality) for modality, path in media]
    asked = [(item, version(item), timeout_s) for item in items]
    for known in (True, False):
        of_these = [one for one in asked if (decoded and is_here(one[0].path)) == known]
        _decode_missing(of_these, timeout_s, known)
    return [_known[one] for one in asked]


def _decode_missing(asked: Sequence[_Request], timeout_s: float, known: bool) -> None:
    if known:
        _known.update((one, one[0].path) for one in asked if Location.of(one[0].path).is_file)
    missing = [one for one in dict.fromkeys(asked) if one not in _known]
    if not missing:
        return
    more = (str(_folder().path), "known" if known else "")
    with LocalPool(Named("mmcalib.media.decode", "handed", more), timeout_s=timeout_s) as pool:
        tickets = [pool.submit([ProbeTask(item)]) for item, *_ in missing]
        try:
            for one, ticket in zip(missing, tickets, strict=True):
                (answer,) = pool.result(ticket)
                if answer.line.startswith("/"):
                    _known[one] = answer.line
                else:
                    seen = decode(one[0].path, answer.line)
                    assert isinstance(seen, Skipped)
                    _known[one] = replace(seen, out_of_reach=may_pass(answer.line))
        except OutputError as error:
            raise OutputError(error.message, hint="TMPDIR=DIR") from error


def requests_of_files(
    requests: Sequence[ChatRequest], files: Files = files
) -> list[ChatRequest | Skipped]:
    """Each request with a `file://` URL for every medium, or the first that may not be read."""
    media = [[(MODALITY_OF[kind], _path(url)) for kind, url in one.media()] for one in requests]
    found = iter(files(itertools.chain.from_iterable(media)))
    made: list[ChatRequest | Skipped] = []
    for request, named in zip(requests, media, strict=True):
        paths = list(itertools.islice(found, len(named)))
        bad = next((path for path in paths if isinstance(path, Skipped)), None)
        urls = (served_url(path) for path in paths if isinstance(path, str))
        made.append(bad or request.replace_media(urls))
    return made


def _path(url: str) -> str:
    """Of a `file://` URL, as `url_of` writes it, the file; of others themselves."""
    if not url.startswith(_FILE):
        return url
    return unquote(url.removeprefix(_FILE), errors="surrogateescape")
