"""Results as JSON lines, one a case, written as they come: a stop loses nothing."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mmcalib.checks.engine import Component
from mmcalib.text import GIB


@dataclass(frozen=True, slots=True)
class Result:
    """One case that was tried. `failed` maps a step (rehearsal, start, burst) to its error's line.

    `components` are dicts of name, predicted and measured; `rehearsed` and `started` are the raw
    answers, None where there is none. `seconds` are those of start and burst.
    """

    key: str
    model: str
    kind: str
    device: str
    gpu: str
    vllm: str
    seconds: float
    engine_args: dict[str, Any]
    components: list[dict[str, Any]]
    rehearsed: dict[str, Any] | None = None
    started: dict[str, Any] | None = None
    burst: dict[str, Any] | None = None
    failed: dict[str, str] = field(default_factory=dict)
    used_before_bytes: int | None = None
    used_after_bytes: int | None = None

    @property
    def runner(self) -> str:
        """As it was asked for."""
        return self.key.split(":")[3]

    @property
    def card_bytes(self) -> int:
        """The size of the GPU, or of the smaller one that it was bounded to."""
        if bounded := re.search(r":([\d.]+)gib", self.key):
            return int(float(bounded[1]) * GIB)
        return int(self.started["gpu"]["total_bytes"]) if self.started else 0

    @property
    def parts(self) -> dict[str, Component]:
        """The components by name, as they were compared."""
        return {one["name"]: Component(**one) for one in self.components}


class Results:
    """The file of one GPU and one vLLM; what others wrote into it is left alone and not seen."""

    def __init__(self, path: Path, gpu: str, vllm: str) -> None:
        self._path, self._of = path, (gpu, vllm)

    def __iter__(self) -> Iterator[Result]:
        """The last result of each case, in the order in which cases were first tried."""
        return iter({one.key: one for one in self._all()}.values())

    def first_pools(self) -> dict[str, int]:
        """By case the KV pool in bytes that was predicted before it was ever measured."""
        found: dict[str, int] = {}
        for one in self._all():
            if pool := one.parts.get("KV pool"):
                found.setdefault(one.key, pool.predicted)
        return found

    def _all(self) -> Iterator[Result]:
        return (one for one in read(self._path) if (one.gpu, one.vllm) == self._of)

    def done(self, *, retry: bool = False) -> set[str]:
        """Cases not to be tried again; with `retry` only those without a failure."""
        return {one.key for one in self if not (retry and one.failed)}

    def add(self, result: Result) -> None:
        """Append, so that it is on disk when this returns."""
        fields = {name: getattr(result, name) for name in Result.__slots__}
        with self._path.open("ab+") as file:
            # A line that a kill cut short must not swallow this one.
            torn = file.tell() and (file.seek(-1, os.SEEK_END), file.read(1))[1] != b"\n"
            file.write((b"\n" if torn else b"") + json.dumps(fields).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())


def read(path: Path) -> Iterator[Result]:
    """Every whole line of the file; none where it is not there."""
    for line in path.read_bytes().splitlines() if path.is_file() else ():
        try:
            fields = json.loads(line)
        except ValueError:
            continue
        yield Result(**fields)
