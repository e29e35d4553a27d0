"""A form of the configuration: its text, its file, and how an engine is started from that."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mmcalib.report import words
from mmcalib.report.sayable import check_sayable
from mmcalib.result.calibration import CalibrationDocument
from mmcalib.result.check_result import first_failed
from mmcalib.result.server import ServerPart, serving


@dataclass(frozen=True, slots=True)
class ConfigurationFormat:
    """`use` has the place `{file}` for the file's name. `comments` is false where a comment would
    be in the way; `variables`: it carries the environment of the server, too.
    """

    suffix: str
    text: Callable[[CalibrationDocument], str]
    use: str
    comments: bool = True
    variables: bool = False

    @property
    def file(self) -> str:
        """The name of the file that it is kept in."""
        return f"engine.{self.suffix}"

    def used(self, server: ServerPart | None, name: str) -> str:
        """How an engine is started from the file of that name, quoted for a shell."""
        how = self.use.replace("{file}", name)
        return how if self.variables else serving(server, how)

    def render(self, calibration: CalibrationDocument) -> str:
        """The file's content. One that was emitted against the verdict says so on top.

        Raises OutputError where the form cannot carry a value, and for what is no configuration.
        """
        check_sayable(calibration.engine_config, in_yaml=self.suffix.endswith("yaml"))
        text = self.text(calibration)
        if calibration.verdict == "fail" and self.comments:
            failed = first_failed(calibration.checks)
            text = f"# The verdict is fail: {words.check_line(failed)}\n{text}"
        return text
