"""The two allowances, fitted on real starts, each case predicted without its own."""

from __future__ import annotations

import statistics
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from memory.cases import GIB, Case

GRAPHS = ("dense", "gated-delta")
OUTSIDE = ("older", "newer", "unified")


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure in bytes; `cases` are the logs, or the measured models, that it comes from.

    Graphs are of a gated-delta model where `layers` is not 0; of these bytes a rehearsal computes
    `workspace_bytes`, which hold what the first graph takes.
    """

    nbytes: float
    graphs: int
    layers: int
    workspace_bytes: float
    cases: tuple[str, ...]
    what: str
    source: str

    @property
    def kind(self) -> str:
        return GRAPHS[self.layers > 0]


@dataclass(frozen=True, slots=True)
class Coefficients:
    """Bytes of a first graph, of each graph, of each layer of each graph of a gated-delta model."""

    first: float
    each: float
    each_layer: float

    def predict(self, graphs: int, layers: int, workspace_bytes: float = 0) -> float:
        """What startup would subtract for so many graphs, 0 for none."""
        more = self.each_layer * layers if layers else self.each
        return (workspace_bytes or self.first) + graphs * more if graphs else 0.0


@dataclass(frozen=True, slots=True)
class Allowances:
    """Every figure of memory outside torch, and of CUDA graphs as startup estimates them.

    `outside` has kinds of GPU; `convolution` is what an encoder that convolves adds. `held_out` are
    graphs of gated-delta models on unified memory, which the fit does not see.
    """

    outside: Mapping[str, tuple[Figure, ...]]
    convolution: tuple[Figure, ...]
    cuda_graphs: tuple[Figure, ...]
    held_out: tuple[Figure, ...]

    def outside_bytes(self, kind: str, without: str | None = None) -> float:
        """Return the median of the figures of such GPUs, without those of one case."""
        return statistics.median(one.nbytes for one in _without(self.outside[kind], without))

    def convolution_bytes(self, without: str | None = None) -> float:
        """Return the most of these figures, without those of one case."""
        return max(one.nbytes for one in _without(self.convolution, without))

    def fit(self, without: str | None = None) -> Coefficients:
        """Fit both kinds, which share the first graph, by least squares, without one case."""
        return _fit(_without(self.cuda_graphs, without))

    def knowledge_of(self, case: Case) -> str:
        """Say whether the prediction of a case knew it: fitted on, left out, or never seen."""
        if case.fitted:
            return "fitted on"
        every = (*self.outside.values(), self.convolution, self.cuda_graphs, self.held_out)
        own = any(case.id in one.cases for figures in every for one in figures)
        return "left out" if own else "never seen"

    def errors(self) -> Iterator[tuple[str, Figure, float]]:
        """Each figure's kind, itself, and the error of its prediction from all others."""
        for kind, figures in self.outside.items():
            yield from ((kind, one, error) for one, error in _each(figures, _median_error))
        for one, error in _each(self.cuda_graphs, _graphs_error):
            yield one.kind, one, error
        for one in self.held_out:
            yield "held out", one, _graphs_error(self.cuda_graphs, one)


def _without(figures: Sequence[Figure], case: str | None) -> list[Figure]:
    return [one for one in figures if case not in one.cases]


def _fit(figures: Sequence[Figure]) -> Coefficients:
    rows = [
        (not one.workspace_bytes, 0 if one.layers else one.graphs, one.graphs * one.layers)
        for one in figures
    ]
    left = [one.nbytes - one.workspace_bytes for one in figures]
    found = np.linalg.lstsq(np.array(rows, float), np.array(left), rcond=None)[0]
    return Coefficients(*map(float, found))


def _each(
    figures: Sequence[Figure], error: Callable[[Sequence[Figure], Figure], float]
) -> Iterator[tuple[Figure, float]]:
    for one in figures:
        yield one, error([other for other in figures if other is not one], one)


def _median_error(others: Sequence[Figure], one: Figure) -> float:
    return statistics.median(other.nbytes for other in others) - one.nbytes


def _graphs_error(others: Sequence[Figure], one: Figure) -> float:
    return _fit(others).predict(one.graphs, one.layers, one.workspace_bytes) - one.nbytes


def load(path: Path) -> Allowances:
    """Read the table of public figures."""
    document = tomllib.loads(path.read_text(encoding="utf-8"))
    found = {name: tuple(map(_figure, figures)) for name, figures in document.items()}
    outside = {kind: found.pop(kind) for kind in OUTSIDE}
    return Allowances(outside=outside, **found)


def _figure(entry: dict[str, Any]) -> Figure:
    log = entry.get("log")
    source = log or (f"public file {entry['file']}" if "file" in entry else "")
    return Figure(
        nbytes=entry["gib"] * GIB,
        graphs=entry.get("graphs", 0),
        layers=entry.get("layers", 0),
        workspace_bytes=entry.get("workspace_gib", 0) * GIB,
        cases=tuple(entry.get("models", [log] if log else [])),
        what=entry["what"],
        source=source,
    )
