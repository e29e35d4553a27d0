"""Files of this disk: whether they are regular, and what tells that they are still the same."""

from __future__ import annotations

import errno
import os
import stat

NOT_REGULAR = "not a regular file"


def version_of(status: os.stat_result) -> str:
    """Size and time of modification."""
    return f"{status.st_size}:{status.st_mtime_ns}"


def regular_version(path: str) -> str:
    """The version of a regular file, which is not opened. Raises OSError for anything else."""
    status = os.stat(path)
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, NOT_REGULAR)
    return version_of(status)
