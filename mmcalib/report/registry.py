"""The output formats: each is a module of `pages/` or `emit/`, by whose name it is asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from mmcalib.report.configuration_format import ConfigurationFormat
    from mmcalib.report.renderer import Renderer
    from mmcalib.report.report_format import ReportFormat

R = TypeVar("R", bound="Renderer[Any]", covariant=True)


class Registry(Mapping[str, R]):
    """The `RENDERER` of each module of a package, `default` first. Names are had without loading
    what renders.
    """

    def __init__(self, package: str, default: str) -> None:
        self._package = package
        self.default = default

    @cached_property
    def names(self) -> tuple[str, ...]:
        found = {module.name for module in iter_modules(import_module(self._package).__path__)}
        return (self.default, *sorted(found - {self.default}))

    def __getitem__(self, name: str) -> R:
        if name not in self.names:
            raise KeyError(name)
        found: R = import_module(f"{self._package}.{name}").RENDERER
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)


REPORTS: Registry[ReportFormat] = Registry("mmcalib.report.pages", "html")
CONFIGURATIONS: Registry[ConfigurationFormat] = Registry("mmcalib.report.emit", "yaml")
