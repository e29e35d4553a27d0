"""What a package holds, where each of its modules is one of a kind and nobody keeps a list."""

from __future__ import annotations

import importlib
import pkgutil
from types import ModuleType


def names_in(package: ModuleType) -> list[str]:
    """The names of its modules, sorted; none of them is loaded."""
    return sorted(module.name for module in pkgutil.iter_modules(package.__path__))


def modules_in(package: ModuleType) -> list[ModuleType]:
    """Its modules, in the order of their names."""
    return [importlib.import_module(f"{package.__name__}.{name}") for name in names_in(package)]
