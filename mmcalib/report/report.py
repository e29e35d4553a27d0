"""What a report shows of one calibration, with or without names and pictures."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from mmcalib.report.html.before_after import BeforeAfter, before_after
from mmcalib.report.html.costly import CostlyItem, costly
from mmcalib.report.html.redact import redacted
from mmcalib.report.html.roots import Roots
from mmcalib.result.calibration import CalibrationDocument
from mmcalib.result.server import SERVE, serving


@dataclass(frozen=True)
class Report:
    """`serve_with` is the command that serves the configuration, which is shown with the limits on
    media that were raised for it. With `redact_paths` no file of the corpus is named, nor a folder
    of this machine; with `thumbnails` the page shows the costliest items, whose files are read for
    it: all of them, or those that `roots` hold. A calibration that was not made here and now may
    name any file, so that it needs some.
    """

    calibration: CalibrationDocument
    serve_with: str
    thumbnails: bool = True
    redact_paths: bool = False
    roots: Roots | None = None

    @property
    def shown(self) -> CalibrationDocument:
        """As it may be seen."""
        return self._shown[0]

    @property
    def command(self) -> str:
        """What serves the configuration, as it may be seen."""
        return self._shown[1]

    @cached_property
    def items(self) -> list[CostlyItem]:
        """The costliest items, as the page shows them."""
        return costly(
            self.calibration,
            thumbnails=self.thumbnails,
            names=self._shown[2],
            roots=self.roots,
        )

    @cached_property
    def before_after(self) -> BeforeAfter | None:
        """One image before and after it is made smaller; None without `thumbnails`."""
        if not self.thumbnails:
            return None
        return before_after(self.calibration, names=self._shown[2], roots=self.roots)

    @cached_property
    def _shown(self) -> tuple[CalibrationDocument, str, dict[str, str] | None]:
        server = self.calibration.server
        if not self.redact_paths:
            return self.calibration, serving(server, self.serve_with), None
        clean, names = redacted(self.calibration)
        return clean, serving(server, SERVE), names
