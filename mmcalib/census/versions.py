"""What tells whether bytes are still those that were seen."""

from __future__ import annotations

import os
import stat

from mmcalib.domain.items import Item
from mmcalib.locations.disk import version_of

# A file may change again within one tick of the clock that its time is taken from: of the kernel,
# some milliseconds; of file systems that keep whole seconds, two.
_TICK_NS = 20_000_000
_COARSE_TICK_NS = 2_000_000_000
_SECOND_NS = 1_000_000_000


def version(item: Item) -> str:
    """Size and time of a file, or what the source says; empty for what is no regular file, and
    where the name is none that results could say.
    """
    if not in_unicode(item.path):
        return ""
    if item.held is not None:
        return item.held.version
    try:
        status = os.stat(item.path)
    except (OSError, ValueError):
        return ""
    return version_of(status) if stat.S_ISREG(status.st_mode) else ""


def in_unicode(path: str) -> bool:
    """Results are UTF-8, and so are the requests that would name the file."""
    if path.isascii():
        return True
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def is_settled(version: str, now_ns: int) -> bool:
    """Whether bytes that change from `now_ns` on would have another version."""
    mtime = version.rpartition(":")[2]
    if not mtime.isascii() or not mtime.isdigit():
        return True
    tick_ns = _TICK_NS if int(mtime) % _SECOND_NS else _COARSE_TICK_NS
    return now_ns - int(mtime) > tick_ns
