"""Hosts that media may be read from. Processes that are started meanwhile inherit them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

VARIABLE = "MMCALIB_ALLOWED_MEDIA_DOMAINS"

NOT_ALLOWED = "its host is not one of --allowed-media-domains"


@contextmanager
def allowing(domains: Iterable[str]) -> Iterator[None]:
    """Meanwhile these may be read from, too; each may be several with commas between them."""
    before = os.environ.get(VARIABLE, "")
    os.environ[VARIABLE] = ",".join((before, *domains)).lower()
    try:
        yield
    finally:
        os.environ[VARIABLE] = before


def is_allowed(url: str) -> bool:
    """By the very name of its host, or bucket."""
    try:
        return is_allowed_host(urlsplit(url).hostname)
    except ValueError:
        return False


def is_allowed_host(host: str | None) -> bool:
    """Of a name without its port, in small letters."""
    return bool(host) and host in os.environ.get(VARIABLE, "").split(",")


def is_http(url: str) -> bool:
    return url.startswith(("http://", "https://"))
