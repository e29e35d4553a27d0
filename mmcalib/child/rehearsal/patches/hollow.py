"""Packages that vLLM finds and may choose, of which nothing runs but what is described here."""

from __future__ import annotations

import importlib
import importlib.machinery
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mmcalib.child.rehearsal.device.errors import NoFakeImplementation

# What is described, by module and name.
Described = Mapping[str, Mapping[str, Any]]


class _Kind(type):
    """A hollow class: its public names stand for nothing, as if it were an enum."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return f"{cls.__name__}.{name}"


class _Hollow(types.ModuleType):
    """A module in which every public name is a class that does nothing, or a function that is
    refused when it is called.
    """

    def __init__(self, name: str, packages: HollowPackages) -> None:
        super().__init__(name)
        self.__dict__["_packages"] = packages

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        full = f"{self.__name__}.{name}"
        if any(known == full or known.startswith(f"{full}.") for known in self._packages.described):
            return importlib.import_module(full)
        made = _nothing(name) if name[0].isupper() else self._packages.refused(full)
        setattr(self, name, made)
        return made

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """A function that has the name of a module."""
        return self._packages.refused(self.__name__)(*args, **kwargs)


def _nothing(name: str) -> type:
    return _Kind(name, (), {"__init__": lambda self, *args, **kwargs: None})


class HollowPackages:
    """Finds every module of the packages as a hollow one, before the real ones are looked for.

    `module` says which part of the model is at work, `way_out` what does without a function that
    nobody described.
    """

    def __init__(
        self, names: Sequence[str], described: Described, module: Callable[[], str], way_out: str
    ) -> None:
        self.described = described
        self._names, self._module, self._way_out = frozenset(names), module, way_out

    def install(self) -> None:
        """Must come before anybody looks for the packages."""
        sys.meta_path.insert(0, self)

    def refused(self, name: str) -> Callable[..., Any]:
        """A function that raises NoFakeImplementation, which names it."""

        def refuse(*args: Any, **kwargs: Any) -> Any:
            raise NoFakeImplementation(name, self._module(), self._way_out)

        return refuse

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name.partition(".")[0] not in self._names:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type]

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _Hollow(spec.name, self)

    def exec_module(self, module: types.ModuleType) -> None:
        module.__dict__.update(self.described.get(module.__name__, {}))
        module.__dict__.setdefault("__version__", "0.0.0")
