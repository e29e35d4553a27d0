"""The names of the output formats, the default first, without what renders them."""

from __future__ import annotations

from typing import Final, Literal, get_args

ReportName = Literal["html", "md", "text", "issue"]
ConfigurationName = Literal["yaml", "args", "docker", "env", "k8s", "python"]

REPORT_NAMES: Final[tuple[str, ...]] = get_args(ReportName)
CONFIGURATION_NAMES: Final[tuple[str, ...]] = get_args(ConfigurationName)
