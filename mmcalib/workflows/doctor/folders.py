"""The folders that a run writes to: whether it may, and how much room is left."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

from mmcalib.checks.check import Check, CheckId
from mmcalib.results.doctor import Folder
from mmcalib.sizes import GIB, MIB
from mmcalib.workflows.spec import cache_dir

FOLDER = CheckId("{} folder")

Purpose = Literal["cache", "results", "temporary"]

_CURES: dict[Purpose, str] = {
    "cache": "export MMCALIB_CACHE_DIR=/a/folder/that/is/yours",
    "results": "mmcalib run --out /a/folder/that/is/yours ...",
    "temporary": "export TMPDIR=/a/folder/that/is/yours",
}


def folders() -> list[Folder]:
    """The cache, the folder in which `--out out` comes to lie, and the one for scratch files."""
    return [
        _folder("cache", cache_dir()),
        _folder("results", Path.cwd()),
        _folder("temporary", _temporary()),
    ]


def folder_checks(found: Sequence[Folder], *, wanted_bytes: int) -> Iterator[Check]:
    """`wanted_bytes` of disk are what a run may fill."""
    for folder in found:
        name, where = FOLDER.of(folder.purpose), folder.path
        if not folder.writable:
            yield Check(name, "fail", f"cannot write to {where}", _CURES[folder.purpose])
        elif folder.free_bytes is not None and folder.free_bytes < wanted_bytes:
            detail = f"{folder.free_bytes / MIB:.0f} MiB free in {where}"
            yield Check(name, "warn", detail, _CURES[folder.purpose])
        else:
            free = "" if folder.free_bytes is None else f", {folder.free_bytes / GIB:.0f} GiB free"
            yield Check(name, "pass", f"{where}{free}", "")


def _temporary() -> Path:
    """Where temporary files go; the working folder when there is no better one."""
    try:
        return Path(tempfile.gettempdir())
    except FileNotFoundError:
        return Path.cwd()


def _folder(purpose: Purpose, path: Path) -> Folder:
    """Nothing is made: a folder that is missing can be where the nearest above it is writable."""
    writable, free = False, None
    try:
        nearest = next(one for one in (path, *path.absolute().parents) if one.exists())
        free = shutil.disk_usage(nearest).free
        # Asking is not enough: root may write anywhere but on what is mounted read-only.
        with tempfile.TemporaryFile(dir=nearest) as file:
            file.write(b"\0")
            writable = True
    except OSError:
        pass
    return Folder(purpose=purpose, path=str(path), writable=writable, free_bytes=free)
