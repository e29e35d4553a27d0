"""`mmcalib list`: the models and GPUs that are known by name."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Final

import typer

from mmcalib.cli.command import none_of, print_document, print_json
from mmcalib.errors import UsageError

_KINDS: Final = ("models", "gpus")


def list_known(
    what: Annotated[str, typer.Argument(metavar="models|gpus", help="Which of them.")],
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[WORD]...", help="Parts of the name, such as qwen3 or 4090."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list.")] = False,
) -> None:
    """List the models that calibrate offline, without weights, or the GPUs that --gpu takes.

    Example: mmcalib list models qwen3

    Example: mmcalib list gpus rtx
    """
    if what not in _KINDS:
        raise UsageError(f"{what} is {none_of(_KINDS)}", hint="mmcalib list models")
    if what == "models":
        _models(words or (), as_json=as_json)
    else:
        _gpus(words or (), as_json=as_json)


def _models(words: Sequence[str], *, as_json: bool) -> None:
    from mmcalib.models.catalogue import bundled
    from mmcalib.results.doctor import BundledModel

    found = [
        BundledModel.of(geometry)
        for geometry in bundled()
        if all(word.lower() in geometry.id.lower() for word in words)
    ]
    if as_json:
        print_json(found)
    elif not found:
        print("no bundled model matches: mmcalib list models lists all", file=sys.stderr)
    else:
        width = max(len(model.id) for model in found)
        for model in found:
            print(f"{model.id:<{width}}  {', '.join(model.modalities)}")


def _gpus(words: Sequence[str], *, as_json: bool) -> None:
    from mmcalib import text
    from mmcalib.models import gpus

    wanted = [gpus.fold(word) or word.lower() for word in words]
    found = [
        gpu
        for gpu in gpus.all()
        if all(word in gpus.fold(gpu.name) or word in gpu.name.lower() for word in wanted)
    ]
    if as_json:
        print_document(json.dumps([asdict(gpu) for gpu in found], indent=2))
        return
    if not found:
        print(
            f"no such GPU is known; any other, instead of --gpu: {gpus.ANY}",
            file=sys.stderr,
        )
        return
    width = max(len(gpu.name) for gpu in found)
    print(f"{'GPU':<{width}}     memory  capability", file=sys.stderr, flush=True)
    for gpu in found:
        rest = "memory only: it has no CUDA" if gpu.memory_only else ""
        capability = gpu.compute_capability or "-"
        memory = text.gib(gpu.total_bytes)
        if gpu.total_status == "inferred":
            rest = f"{rest}; inferred" if rest else "inferred"
        print(f"{gpu.name:<{width}}  {memory:>9}  {capability:<10}  {rest}".rstrip())
    print(
        "memory as torch reports it, less than advertised; "
        "from public sources, unless marked inferred",
        file=sys.stderr,
    )
