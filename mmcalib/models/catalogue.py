"""The models whose geometry is bundled."""

from __future__ import annotations

import json
from functools import cache
from importlib import resources

from mmcalib.models.fact import Geometry, parse_geometry


@cache
def bundled() -> tuple[Geometry, ...]:
    """Every bundled geometry, ordered by id."""
    folder = resources.files("mmcalib.models") / "facts"
    documents = (
        json.loads(file.read_text(encoding="utf-8"))
        for file in folder.iterdir()
        if file.name.endswith(".json")
    )
    return tuple(sorted(map(parse_geometry, documents), key=lambda geometry: geometry.id.lower()))


def find(model_id: str) -> Geometry | None:
    """The bundled geometry of that id, or of that last path part; case does not matter."""
    wanted = model_id.lower()
    for geometry in bundled():
        full = geometry.id.lower()
        if wanted in (full, full.rpartition("/")[2]):
            return geometry
    return None
