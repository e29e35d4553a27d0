"""`mmcalib list`: the models and GPUs that are known by name."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import MISSING, asdict
from typing import Literal

from mmcalib.cli.command import print_document, print_json
from mmcalib.options.option import argument, options, switch


@options
class ListOptions:
    """What is listed."""

    what: Literal["models", "gpus"] = argument(
        "models|gpus",
        "Which of them.",
        MISSING,
        wrong="{given} is neither models nor gpus",
        hint="mmcalib list models",
    )
    words: list[str] | None = argument("[WORD]...", "Parts of the name, such as qwen3 or 4090.")
    as_json: bool = switch("Print a JSON list.", "--json")


def list_known(options: ListOptions) -> None:
    """List the models that calibrate offline, without weights, or the GPUs that --gpu takes.

    Example: mmcalib list models qwen3

    Example: mmcalib list gpus rtx
    """
    list_kind = _list_models if options.what == "models" else _list_gpus
    list_kind(options.words or (), as_json=options.as_json)


def _list_models(words: Sequence[str], *, as_json: bool) -> None:
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


def _list_gpus(words: Sequence[str], *, as_json: bool) -> None:
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
        print(f"no such GPU is known; any other, instead of --gpu: {gpus.ANY}", file=sys.stderr)
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
        "memory as torch reports it on Linux, from public sources unless marked inferred; "
        "WSL 2 shows more, which --gpu-memory takes",
        file=sys.stderr,
    )
