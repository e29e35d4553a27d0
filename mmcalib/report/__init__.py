"""Renderings of the documents, for people and for engines; the names of their formats."""

from typing import Final, Literal, get_args

# The default first. What renders them is not loaded with their names.
ReportName = Literal["html", "md", "text", "issue"]
ConfigurationName = Literal["yaml", "args", "docker", "env", "k8s", "python"]

REPORT_NAMES: Final[tuple[str, ...]] = get_args(ReportName)
CONFIGURATION_NAMES: Final[tuple[str, ...]] = get_args(ConfigurationName)
