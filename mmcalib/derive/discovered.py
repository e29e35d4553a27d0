"""What a package holds, where each of its modules is one of a kind and nobody keeps a list."""

from __future__ import annotations

import importlib
import pkgutil
from types import ModuleType


def modules_in(package: ModuleType) -> list[ModuleType]:
    """Its modules, in the order of their names."""
    names = sorted(module.name for module in pkgutil.iter_modules(package.__path__))
    return [importlib.import_module(f"{package.__name__}.{name}") for name in names]
