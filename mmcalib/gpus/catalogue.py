"""The GPUs that mmcalib knows by name."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import resources
from typing import Any

from mmcalib.errors import UsageError
from mmcalib.gpus.gpu import CAPABILITIES, TOTAL_STATUSES, Gpu

BRANDS = re.compile(r"^(?:nvidia|amd|geforce|tesla|quadro|instinct|rtx)")
GIGABYTES = re.compile(r"(?<=\d)gi?b")
SUGGESTIONS = 3
ANY = "--gpu-memory 24GiB --capability 8.9"


@cache
def all() -> tuple[Gpu, ...]:  # noqa: A001 - read as `catalogue.all()`
    """Every GPU of the catalogue, in its order: by maker, use and generation."""
    return tuple(_parse(entry) for entry in _document())


def names() -> tuple[str, ...]:
    """The name of every GPU, in the catalogue's order."""
    return tuple(gpu.name for gpu in all())


def find(name: str) -> Gpu:
    """The GPU of that name, alias or torch name; case, spaces, dashes and brand do not matter.

    Raises UsageError with the closest names when there is none, and with all that it may mean when
    it is sold with several sizes of memory, as the A100.
    """
    spellings = _spellings()
    wanted = fold(name)
    if (gpu := spellings.get(wanted)) is not None:
        return gpu
    meant = [gpu.name for gpu in all() if fold(gpu.name.rpartition("-")[0]) == wanted]
    if wanted and len(meant) > 1:
        raise UsageError(
            f"{name} is sold with several sizes of memory: {', '.join(meant)}",
            hint=f"name the one that will serve: --gpu {meant[0]}",
        )
    if "," in name:
        hint = "one of them; on the command line, run compares several"
        raise UsageError(f"{name} are several GPUs, not one", hint=hint)
    close = difflib.get_close_matches(wanted, spellings, n=4 * SUGGESTIONS, cutoff=0.5)
    near = list(dict.fromkeys(spellings[spelling].name for spelling in close))[:SUGGESTIONS]
    raise UsageError(
        f"no GPU called {name!r} is known" + (f"; close to it: {', '.join(near)}" if near else ""),
        hint=f"mmcalib list gpus shows {len(all())}; any other, instead of --gpu: {ANY}",
    )


def fold(name: str) -> str:
    """A name without what people leave out or vary: case, separators, brands, the B of 80GB."""
    text = GIGABYTES.sub("g", re.sub(r"[\s_/()-]+", "", name.lower()))
    while (bare := BRANDS.sub("", text)) != text:
        text = bare
    return text


@cache
def _document() -> tuple[Mapping[str, Any], ...]:
    file = resources.files("mmcalib.gpus") / "catalogue.json"
    return tuple(json.loads(file.read_text(encoding="utf-8")))


@cache
def _spellings() -> Mapping[str, Gpu]:
    """Every folded spelling; raises ValueError when one is claimed by two GPUs."""
    found: dict[str, Gpu] = {}
    for gpu, entry in zip(all(), _document(), strict=True):
        for spelling in _claimed(entry):
            if found.setdefault(spelling, gpu) is not gpu:
                raise ValueError(f"{spelling} is both {found[spelling].name} and {gpu.name}")
    return found


def _claimed(entry: Mapping[str, Any]) -> Iterator[str]:
    for spelling in (entry["name"], entry["torch_name"], *entry["aliases"]):
        yield fold(spelling)


def _parse(entry: Mapping[str, Any]) -> Gpu:
    """Raises KeyError, TypeError or ValueError for an entry that is not whole."""
    values = {key: value for key, value in entry.items() if key != "aliases"}
    if values["capability"] is not None:
        values["capability"] = tuple(values["capability"])
        if values["capability"] not in CAPABILITIES:
            raise ValueError(f"{values['name']}: unknown capability {values['capability']}")
    if values["total_status"] not in TOTAL_STATUSES:
        raise ValueError(f"{values['name']}: unknown status {values['total_status']!r}")
    return Gpu(**values)
