"""`mmcalib gpus`: the GPUs that are known by name."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from mmcalib.cli.document import print_json


def gpus(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[WORD]...", help="Parts of its name, such as h100 or 4090."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list.")] = False,
) -> None:
    """List the GPUs that --gpu takes, with the memory that torch reports of each.

    Example: mmcalib gpus rtx
    """
    from mmcalib import wording
    from mmcalib.gpus import catalogue
    from mmcalib.result.known_gpu import KnownGpu

    wanted = [catalogue.fold(word) or word.lower() for word in words or ()]
    found = [
        KnownGpu.of(gpu)
        for gpu in catalogue.all()
        if all(word in catalogue.fold(gpu.name) or word in gpu.name.lower() for word in wanted)
    ]
    if as_json:
        print_json(found)
        return
    if not found:
        print(
            f"no such GPU is known; any other, instead of --gpu: {catalogue.ANY}",
            file=sys.stderr,
        )
        return
    width = max(len(gpu.name) for gpu in found)
    print(f"{'GPU':<{width}}     memory  capability", file=sys.stderr, flush=True)
    for gpu in found:
        rest = "" if gpu.rehearses else "memory only: it has no CUDA"
        capability = gpu.capability or "-"
        memory = wording.gib(gpu.total_bytes)
        if gpu.total_status == "inferred":
            rest = f"{rest}; inferred" if rest else "inferred"
        print(f"{gpu.name:<{width}}  {memory:>9}  {capability:<10}  {rest}".rstrip())
    print(
        "memory as torch reports it, less than advertised; "
        "from public sources, unless marked inferred",
        file=sys.stderr,
    )
