"""The two allowances, fitted on public figures, each case predicted without its own."""

from __future__ import annotations

import statistics
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from memory.cases import GIB


@dataclass(frozen=True, slots=True)
class Figure:
    """One public figure in bytes; `log` is the case that it comes from, None where it is none."""

    nbytes: float
    graphs: int
    log: str | None
    what: str
    source: str


@dataclass(frozen=True, slots=True)
class Allowances:
    """Every public figure of memory outside torch, and of CUDA graphs as startup estimates them."""

    non_torch: tuple[Figure, ...]
    cuda_graphs: tuple[Figure, ...]

    def non_torch_bytes(self, without: str | None = None) -> float:
        """The median of the figures, but for those of one log."""
        return statistics.median(one.nbytes for one in self.non_torch if one.log != without)

    def line(self, without: str | None = None) -> tuple[float, float]:
        """(bytes of none, bytes of each graph): least squares, but for the figures of one log."""
        rest = [one for one in self.cuda_graphs if one.log != without]
        slope, intercept = statistics.linear_regression(
            [one.graphs for one in rest], [one.nbytes for one in rest]
        )
        return intercept, slope

    def cuda_graph_bytes(self, graphs: int, without: str | None = None) -> float:
        """What startup would subtract for so many graphs; 0 for none."""
        first, each = self.line(without)
        return first + graphs * each if graphs else 0.0


def load(path: Path) -> Allowances:
    """Read the table of public figures."""
    document = tomllib.loads(path.read_text(encoding="utf-8"))
    return Allowances(
        tuple(_figure(entry) for entry in document["non_torch"]),
        tuple(_figure(entry) for entry in document["cuda_graphs"]),
    )


def _figure(entry: dict[str, Any]) -> Figure:
    log = entry.get("log")
    source = log or (f"public file {entry['file']}" if "file" in entry else "")
    return Figure(entry["gib"] * GIB, entry.get("graphs", 0), log, entry["what"], source)
