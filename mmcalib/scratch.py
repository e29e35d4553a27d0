"""A folder for what ends with this process."""

from __future__ import annotations

import tempfile
from pathlib import Path

from mmcalib.closing import Closing
from mmcalib.errors import OutputError


class Scratch(Closing):
    """A new folder of this user's alone below TMPDIR, at `path`; removed when closed or when the
    process ends. A process that is killed leaves it to whatever cleans TMPDIR. Raises OutputError.
    """

    def __init__(self) -> None:
        try:
            self._folder = tempfile.TemporaryDirectory(prefix="mmcalib-")
        except OSError as error:
            raise OutputError(
                f"no folder for temporary files: {error.strerror}",
                hint="export TMPDIR=/a/folder/that/is/yours",
            ) from error
        self.path = Path(self._folder.name)

    def close(self) -> None:
        self._folder.cleanup()
