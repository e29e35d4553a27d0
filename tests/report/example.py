"""One calibration made by hand, a golden itself: every other output is rendered from it."""

from collections.abc import Mapping
from typing import Any, TypeVar, cast

from mmcalib.admission.calibration import Calibration
from tests.report.golden import FOLDER

SERVE = "vllm serve --config out/engine.yaml"
Part = TypeVar("Part")


def calibration(**changes: Any) -> Calibration:
    """A corpus of pages and clips on Qwen2.5-VL, started on a CPU; all checks but one pass."""
    return Calibration.load(FOLDER / "calibration.json").model_copy(update=changes)


def changed(whole: Part, path: str, **values: Any) -> Part:
    """A copy of a document that has these values in the part at a path such as `memory.default`."""
    found: Any = whole
    name, _, rest = path.partition(".")
    if not name:
        found = found.model_copy(update=values)
    elif isinstance(found, Mapping):
        found = {**found, name: changed(found[name], rest, **values)}
    else:
        found = found.model_copy(update={name: changed(getattr(found, name), rest, **values)})
    return cast(Part, found)
