"""The configuration as Python: keyword arguments for `vllm.LLM`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pprint import pformat
from typing import Any

from mmcalib import wording
from mmcalib.report.configuration_format import ConfigurationFormat
from mmcalib.result.calibration import CalibrationDocument

_WIDTH = 88
_INDENT = " " * 4

_PAGE = """\
# vLLM configuration for {model}, made by mmcalib.
from vllm import LLM

ENGINE_ARGS = {{
{entries}
}}

# vLLM may start processes that import this file again.
if __name__ == "__main__":
    llm = LLM(**ENGINE_ARGS)
"""


def python_text(calibration: CalibrationDocument) -> str:
    """A script that starts an engine, and a module that holds `ENGINE_ARGS`."""
    entries = "\n".join(_entries(calibration.engine_args()))
    return _PAGE.format(model=wording.plain(calibration.model.id), entries=entries)


def _entries(config: Mapping[str, Any]) -> Iterator[str]:
    for name, value in config.items():
        if value is not None:
            start = f"{_INDENT}{name!r}: "
            lines = pformat(value, width=_WIDTH - len(start), sort_dicts=False).splitlines()
            yield start + f"\n{' ' * len(start)}".join(lines) + ","


RENDERER = ConfigurationFormat(
    "py",
    python_text,
    use="LLM(**ENGINE_ARGS), as at the end of {file}",
)
