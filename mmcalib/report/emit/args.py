"""The configuration as arguments of `vllm serve`."""

from __future__ import annotations

import shlex

from mmcalib.report.configuration_format import ConfigurationFormat
from mmcalib.report.sayable import check_visible
from mmcalib.result.calibration import CalibrationDocument
from mmcalib.result.serve_arguments import serve_arguments


def arguments_text(calibration: CalibrationDocument) -> str:
    """One option per line, quoted for a shell; the lines are one command.

    Raises OutputError where a value has a character that hides, which a shell has no escape for.
    """
    options = [shlex.join(option) for option in serve_arguments(calibration.engine_config)]
    check_visible("".join(options), "args")
    return " \\\n    ".join(options) + "\n"


RENDERER = ConfigurationFormat(
    "args", arguments_text, use='eval "vllm serve $(cat {file})"', comments=False
)
