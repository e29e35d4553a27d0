"""The configuration as Python: keyword arguments for `vllm.LLM`."""

from __future__ import annotations

from mmcalib import wording
from mmcalib.report.configuration_format import ConfigurationFormat
from mmcalib.report.python_source import dictionary
from mmcalib.result.calibration import CalibrationDocument

_PAGE = """\
# vLLM configuration for {model}, made by mmcalib.
from vllm import LLM

{arguments}
# vLLM may start processes that import this file again.
if __name__ == "__main__":
    llm = LLM(**ENGINE_ARGS)
"""


def python_text(calibration: CalibrationDocument) -> str:
    """A script that starts an engine, and a module that holds `ENGINE_ARGS`."""
    arguments = dictionary("ENGINE_ARGS", calibration.engine_args())
    return _PAGE.format(model=wording.plain(calibration.model.id), arguments=arguments)


RENDERER = ConfigurationFormat(
    "py",
    python_text,
    use="LLM(**ENGINE_ARGS), as at the end of {file}",
)
