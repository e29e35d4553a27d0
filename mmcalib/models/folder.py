"""A folder that appears whole or not at all."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mmcalib.errors import OutputError


@contextmanager
def whole_folder(target: Path) -> Iterator[Path]:
    """A scratch folder that becomes `target` when the block ends well; what was there is replaced.

    Raises OutputError when the parent cannot be written.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
        # mkdtemp's 0700 would hide the folder from a server that runs as another user.
        scratch.chmod(0o755)
    except OSError as error:
        raise OutputError(
            f"{target.parent} cannot be written: {error}",
            hint="export MMCALIB_CACHE_DIR=/a/folder/that/is/yours",
        ) from error
    try:
        yield scratch
        _swap_in(scratch, target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _swap_in(scratch: Path, target: Path) -> None:
    old = Path(tempfile.mkdtemp(prefix=f".{target.name}-old-", dir=target.parent))
    try:
        if target.exists():
            target.rename(old / "was")
        scratch.rename(target)
    except OSError as error:
        raise OutputError(f"{target} cannot be replaced: {error}") from error
    finally:
        shutil.rmtree(old, ignore_errors=True)
