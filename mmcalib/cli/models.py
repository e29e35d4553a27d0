"""`mmcalib models`: what can be calibrated without a hub and without weights."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from mmcalib.cli.document import print_json


def models(
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list.")] = False,
) -> None:
    """List models that calibrate offline and without weights.

    Example: mmcalib models --json
    """
    from mmcalib.models import bundled

    known = bundled()
    if as_json:
        from mmcalib.result.bundled_model import BundledModel

        print_json([BundledModel.model_validate(one, from_attributes=True) for one in known])
        return
    width = max(len(geometry.id) for geometry in known)
    for geometry in known:
        print(f"{geometry.id:<{width}}  {', '.join(geometry.modalities)}")
    print("what each cannot promise: mmcalib models --json", file=sys.stderr)
