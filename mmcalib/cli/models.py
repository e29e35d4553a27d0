"""`mmcalib models`: what can be calibrated without a hub and without weights."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer


def models(
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list.")] = False,
) -> None:
    """List models that calibrate offline and without weights.

    Example: mmcalib models --json
    """
    from mmcalib.geometry import bundled

    known = bundled()
    if as_json:
        listed = [
            {
                "id": geometry.id,
                "architecture": geometry.architecture,
                "modalities": list(geometry.modalities),
                "cannot_promise": list(geometry.cannot_promise),
            }
            for geometry in known
        ]
        print(json.dumps(listed, indent=2))
        return
    width = max(len(geometry.id) for geometry in known)
    for geometry in known:
        print(f"{geometry.id:<{width}}  {', '.join(geometry.modalities)}")
    print("what each cannot promise: mmcalib models --json", file=sys.stderr)
