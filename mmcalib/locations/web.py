"""Ranges of what stands on a web server, anybody's: bounded in time, size and reach."""

from __future__ import annotations

import asyncio
import atexit
import errno
import re
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar
from urllib.request import getproxies, proxy_bypass

import aiohttp
from aiohttp.abc import AbstractResolver
from fsspec.asyn import get_loop
from yarl import URL

from mmcalib.locations.bounds import CONNECT_TIMEOUT_S, MOST_WHOLE_BYTES
from mmcalib.locations.reach import Reach, is_known_here, reach_of
from mmcalib.wording import one_line

T = TypeVar("T")

# aiohttp and curl follow ten and fifty.
_MOST_REDIRECTS = 10
_REDIRECTS = (301, 302, 303, 307, 308)

_RANGE = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18})", re.ASCII)
_NO_RANGE = re.compile(r"bytes \*/(\d{1,18})", re.ASCII)

# A name is looked up again after this long.
_NAME_S = 60.0
_MOST_NAMES = 1000


@dataclass(frozen=True, slots=True)
class FetchedRange:
    """`data` of an object of `size_bytes` in the state that `tag` names; `whole` where it is all of
    it, whatever was asked for.
    """

    data: bytes
    size_bytes: int
    tag: str
    whole: bool = False


class Web:
    """Fetches ranges. What a name led to when it was judged is what is connected to.

    The host that a URL names may be public or private, but no link-local address; from there a
    redirect leads only to hosts that are as public or more. A name of the DNS never leads to this
    machine. Proxies of the environment are used, and judge names themselves.
    """

    def __init__(self, reach: Callable[[str], Reach] = reach_of) -> None:
        self._reach_of = reach
        self._loop = get_loop()
        self._session: aiohttp.ClientSession | None = None
        self._names: _Names | None = None
        atexit.register(self.close)

    def part(self, url: str, start: int, size_bytes: int, within_s: float) -> FetchedRange:
        """At most `size_bytes` from `start` on. Raises OSError, also TimeoutError."""
        return self._wait(self._part(url, start, start + size_bytes, within_s), within_s + 1)

    def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            with suppress(Exception):
                self._wait(session.close(), 1)

    def _wait(self, coroutine: Coroutine[Any, Any, T], within_s: float) -> T:
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result(within_s)
        except TimeoutError as error:
            raise TimeoutError(errno.ETIMEDOUT, "no answer in time") from error
        except aiohttp.ClientPayloadError as error:
            raise OSError(errno.EIO, "the server's answer ends too early") from error
        except aiohttp.ClientResponseError as error:
            raise OSError(errno.EIO, "the server's answer is not HTTP") from error
        finally:
            future.cancel()

    async def _part(self, url: str, start: int, end: int, within_s: float) -> FetchedRange:
        return await asyncio.wait_for(self._followed(URL(url), start, end), within_s)

    async def _followed(self, url: URL, start: int, end: int) -> FetchedRange:
        session, names = self._opened()
        most: Reach | None = None
        headers = {"Range": f"bytes={start}-{end - 1}", "Accept-Encoding": "identity"}
        for _ in range(_MOST_REDIRECTS + 1):
            reach = await self._judged(url, names)
            most = reach if most is None else most
            if reach > most:
                raise _refused(f"redirects to {url.host}, {reach.words}")
            async with session.get(url, headers=headers, allow_redirects=False) as response:
                if response.status not in _REDIRECTS:
                    return await _answer(response, start, end)
                url = _redirected(url, response.headers.get("Location", ""))
        raise OSError(errno.ELOOP, f"more than {_MOST_REDIRECTS} redirects")

    def _opened(self) -> tuple[aiohttp.ClientSession, _Names]:
        if self._session is None or self._names is None:
            self._names = _Names()
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(resolver=self._names, use_dns_cache=False),
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(total=None, connect=CONNECT_TIMEOUT_S),
                auto_decompress=False,
                trust_env=True,
            )
        return self._session, self._names

    async def _judged(self, url: URL, names: _Names) -> Reach:
        host = url.host or ""
        if url.scheme not in ("http", "https") or not host:
            raise _refused(f"redirects to a URL of {url.scheme or 'no'} scheme")
        try:
            reach = self._reach_of(host)
        except ValueError:
            if getproxies().get(url.scheme) and not proxy_bypass(host):
                return Reach.HERE if host.endswith("localhost") else Reach.PUBLIC
            found = await names.judge(host, url.port or 0)
            reach = max(map(self._reach_of, found))
            if reach == Reach.HERE and not is_known_here(host):
                raise _refused(f"{host} leads to {reach.words}") from None
        if reach == Reach.NEVER:
            raise _refused(f"{host} is {reach.words}, where no media are")
        return reach


class _Names(AbstractResolver):
    """Looks names up, and answers the one who connects with what was found before."""

    def __init__(self) -> None:
        self._resolver = aiohttp.ThreadedResolver()
        self._found: dict[tuple[str, int], tuple[float, list[Any]]] = {}

    async def judge(self, host: str, port: int) -> list[str]:
        """Its addresses, looked up again from time to time."""
        at_s, _ = self._found.get((host, port), (0.0, []))
        if not at_s or time.monotonic() - at_s > _NAME_S:
            await self._look_up(host, port)
        return [str(one["host"]) for one in self._found[host, port][1]]

    async def resolve(self, host: str, port: int = 0, family: Any = 0) -> list[Any]:
        if (host, port) not in self._found:
            await self._look_up(host, port)
        return self._found[host, port][1]

    async def _look_up(self, host: str, port: int) -> None:
        found = await self._resolver.resolve(host, port, family=0)  # type: ignore[arg-type]
        if not found:
            raise OSError(errno.EIO, f"{host} has no address")
        while len(self._found) >= _MOST_NAMES:
            self._found.pop(next(iter(self._found)))
        self._found[host, port] = (time.monotonic(), list(found))

    async def close(self) -> None:
        await self._resolver.close()


def _refused(why: str) -> OSError:
    return OSError(errno.EIO, one_line(why))


def _redirected(url: URL, location: str) -> URL:
    try:
        return url.join(URL(location))
    except ValueError as error:
        raise _refused("redirects to no URL") from error


async def _answer(response: aiohttp.ClientResponse, start: int, end: int) -> FetchedRange:
    headers, status = response.headers, response.status
    tag = headers.get("ETag") or headers.get("Last-Modified") or ""
    said = headers.get("Content-Range", "")
    if status == 416 and (beyond := _NO_RANGE.fullmatch(said)):
        return FetchedRange(b"", int(beyond[1]), tag)
    if status not in (200, 206):
        raise OSError(errno.EIO, f"the server answers {status}")
    encoding = headers.get("Content-Encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        raise OSError(errno.EIO, one_line(f"the server sends it in another form: {encoding}"))
    if status == 200 or response.content_length == 0:
        data = await _read(response, MOST_WHOLE_BYTES)
        return FetchedRange(data, len(data), tag, whole=True)
    found = _RANGE.fullmatch(said)
    if not found or int(found[1]) != start or not start < int(found[2]) + 1 <= end:
        raise OSError(errno.EIO, "the server sends other bytes than it was asked for")
    data = await _read(response, int(found[2]) + 1 - start)
    if len(data) <= int(found[2]) - start:
        raise OSError(errno.EIO, "the server's answer ends too early")
    return FetchedRange(data, int(found[3]), tag)


async def _read(response: aiohttp.ClientResponse, most_bytes: int) -> bytes:
    """The body, no more than that: what is left unread closes the connection."""
    data = bytearray()
    if (response.content_length or 0) > most_bytes:
        raise _too_long(response, most_bytes)
    async for block in response.content.iter_any():
        data += block
        if len(data) > most_bytes:
            raise _too_long(response, most_bytes)
    return bytes(data)


def _too_long(response: aiohttp.ClientResponse, most_bytes: int) -> OSError:
    if response.status == 200:
        why = f"over {most_bytes >> 20} MiB from a server that knows no ranges"
        return OSError(errno.EFBIG, why)
    return OSError(errno.EIO, "the server sends more bytes than it was asked for")


@cache
def the_web() -> Web:
    """The one of this process."""
    return Web()
