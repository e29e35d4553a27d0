"""The child of an mmcalib whose vLLM lacks one name: `python moved.py MODULE:NAME -P -m ...`."""

import importlib.abc
import importlib.machinery
import runpy
import sys
from functools import reduce
from types import ModuleType
from typing import Any


class Without(importlib.abc.MetaPathFinder):
    """Loads a module as always, and then takes one name out of it, or out of a class of it."""

    def __init__(self, module: str, name: str) -> None:
        self._module, self._name = module, name

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
        if fullname != self._module:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        assert spec is not None
        assert spec.loader is not None
        load, name = spec.loader.exec_module, self._name

        def load_without(module: ModuleType) -> None:
            load(module)
            *ways, last = name.split(".")
            delattr(reduce(getattr, ways, module), last)

        spec.loader.exec_module = load_without  # type: ignore[method-assign]
        return spec


if __name__ == "__main__":
    missing, isolated, flag, run, *words = sys.argv[1:]
    assert (isolated, flag) == ("-P", "-m"), sys.argv
    sys.path.remove(sys.path[0])
    sys.meta_path.insert(0, Without(*missing.split(":")))
    sys.argv = [run, *words]
    runpy.run_module(run, run_name="__main__", alter_sys=True)
