"""The output formats: each is a module of `pages/` or `emit/`, by whose name it is asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

from mmcalib.derive.discovered import names_in

if TYPE_CHECKING:
    from mmcalib.report.configuration_format import ConfigurationFormat
    from mmcalib.report.renderer import Renderer
    from mmcalib.report.report_format import ReportFormat

R = TypeVar("R", bound="Renderer[Any]", covariant=True)


class Registry(Mapping[str, R]):
    """The `RENDERER` of each module of a package, `default` first; a `_` of a module's name is
    a `-` in that of its form. Names are had without loading what renders.
    """

    def __init__(self, package: str, default: str) -> None:
        self._package = package
        self.default = default

    @cached_property
    def names(self) -> tuple[str, ...]:
        found = [n.replace("_", "-") for n in names_in(import_module(self._package))]
        return (self.default, *(n for n in found if n != self.default))

    def __getitem__(self, name: str) -> R:
        if name not in self.names:
            raise KeyError(name)
        found: R = import_module(f"{self._package}.{name.replace('-', '_')}").RENDERER
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)


REPORTS: Registry[ReportFormat] = Registry("mmcalib.report.pages", "html")
CONFIGURATIONS: Registry[ConfigurationFormat] = Registry("mmcalib.report.emit", "yaml")
