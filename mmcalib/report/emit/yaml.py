"""`engine.yaml`, as `vllm serve --config` reads it."""

from __future__ import annotations

from mmcalib.report.configuration_format import ConfigurationFormat
from mmcalib.result.calibration import CalibrationDocument
from mmcalib.result.engine_yaml import engine_yaml
from mmcalib.result.server import serving


def yaml_text(calibration: CalibrationDocument) -> str:
    """With the reason of each value as a comment."""
    return engine_yaml(calibration, serving(calibration.server, "vllm serve --config engine.yaml"))


RENDERER = ConfigurationFormat("yaml", yaml_text, use="vllm serve --config {file}")
