"""A calibration as programs hold it: kept in a file, and asked whether an item fits."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Self

from pydantic import PrivateAttr

from mmcalib.derive.admission import Admission
from mmcalib.files import write_text
from mmcalib.result.calibration import CalibrationDocument
from mmcalib.result_files import read_calibration
from mmcalib.texts.counting import Counting
from mmcalib.workflows.gate.presented import admitted


class Calibration(CalibrationDocument):
    __doc__ = CalibrationDocument.__doc__

    _counting: tuple[object, Counting | None] | None = PrivateAttr(default=None)

    @property
    def counting(self) -> Counting | None:
        """What counts texts without vLLM, by the checkpoint's files; None without a recipe."""
        if self._counting is None or self._counting[0] is not self.costs:
            recipe = self.costs.recipe if self.costs else None
            model = str(self.engine_config.get("model", self.model.id))
            self._counting = self.costs, Counting(model, recipe) if recipe else None
        return self._counting[1]

    def admits(
        self, item: Any, *, allowed_local_media_path: str | os.PathLike[str] | None = None
    ) -> Admission:
        """Whether one item or chat request fits. Needs no vLLM.

        `item` is a path, bytes or a binary file, of which the header is read; a `PIL.Image` as it
        is; a numpy array: an image (height × width, or with channels), or frames (number × height ×
        width × channels) as a client sends them, one a second; sound as `(array, rate_hz)`; a chat
        request as a dict, whose files lie below `allowed_local_media_path` (default: the working
        folder); or a shape. What cannot be read does not fit.

        Raises TypeError for anything else, and UsageError as `gate` does, or for a request that
        leads outside that folder.
        """
        return admitted(self.gate, item, allowed_local_media_path, self.counting)

    def save(self, path: str | Path) -> None:
        """Write as JSON, atomically. Raises OutputError when that is not possible."""
        write_text(Path(path), self.to_json() + "\n")

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read what `save` wrote. Raises UsageError for anything else."""
        return read_calibration(path, cls)
