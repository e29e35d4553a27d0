"""One release: what was tried and what became of it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Cell:
    """`state` in a word, and the reason where it is not what one hopes for."""

    state: str
    why: str = ""
    seconds: float = 0.0

    @property
    def wrong(self) -> bool:
        """Whether it is neither fine nor a verdict nor left out for a reason."""
        return self.state in ("moved", "failed", "error")


@dataclass(frozen=True, slots=True)
class Row:
    """One release: the package that was installed, and a cell per capability, command and suite."""

    vllm: str
    package: str
    torch: str
    transformers: str
    cells: dict[str, Cell] = field(default_factory=dict)


def kept(folder: Path) -> list[Row]:
    """The rows that are there, the newest release first."""
    rows = []
    for file in folder.glob("*.json"):
        found = json.loads(file.read_text())
        cells = {name: Cell(**cell) for name, cell in found.pop("cells").items()}
        rows.append(Row(**found, cells=cells))
    return sorted(rows, key=lambda row: tuple(map(int, row.vllm.split(".")[:2])), reverse=True)


def keep(row: Row, folder: Path) -> None:
    """In the file of its release; what was tried another time alone stays."""
    before = next((one for one in kept(folder) if one.vllm == row.vllm), row)
    cells = {name: asdict(cell) for name, cell in {**before.cells, **row.cells}.items()}
    made = {**asdict(row), "cells": cells}
    (folder / f"{row.vllm}.json").write_text(json.dumps(made, indent=1) + "\n")
