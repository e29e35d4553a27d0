"""What was asked and answered, one JSON object per line, so that a run that was cut off goes on."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter

from judging.request import Order
from judging.verdict import Verdict


@dataclass(frozen=True, slots=True)
class Result:
    """An order of requests with one verdict each. `series` and `number` are where in the run it
    stands; `made_of` is a digest of the sources of mmcalib that answered, and of the calibration's.
    """

    subject: str
    series: str
    number: int
    made_of: str
    order: Order
    verdicts: tuple[Verdict, ...]
    seconds: float

    @property
    def timed_out(self) -> bool:
        """A server on a busy machine gave no answer, which says nothing of the request."""
        return any(verdict.said.startswith("TimeoutError") for verdict in self.verdicts)

    @property
    def cause(self) -> str | None:
        """The cause of the first disagreement."""
        return next((verdict.cause for verdict in self.verdicts if verdict.disagrees), None)


@dataclass(frozen=True, slots=True)
class Example:
    """An order that the server and `check` once disagreed about."""

    subject: str
    cause: str
    order: Order


_RESULT: TypeAdapter[Result] = TypeAdapter(Result)
_EXAMPLE: TypeAdapter[Example] = TypeAdapter(Example)


class Results:
    """The results in a file that are `made_of` the same and were answered in time."""

    def __init__(self, path: Path, made_of: str) -> None:
        self._path, self.made_of = path, made_of
        every = {_key(one): one for one in _read(path) if one.made_of == made_of}
        self._found = {key: one for key, one in every.items() if not one.timed_out}

    def __iter__(self) -> Iterator[Result]:
        return iter(self._found.values())

    def get(self, subject: str, series: str, number: int, order: Order) -> Result | None:
        found = self._found.get((subject, series, number))
        return found if found and found.order[: len(order)] == order else None

    def add(self, result: Result) -> None:
        self._found[_key(result)] = result
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("ab+") as file:
            # What a run that was killed has left of a line.
            torn = file.tell() and (file.seek(-1, os.SEEK_END), file.read(1))[1] != b"\n"
            file.write((b"\n" if torn else b"") + _RESULT.dump_json(result) + b"\n")


def kept_examples(path: Path) -> list[Example]:
    """Read a file that may not be there yet."""
    lines = path.read_text("utf-8").splitlines() if path.exists() else []
    return [_EXAMPLE.validate_json(line) for line in lines if line.strip()]


def keep_example(path: Path, example: Example) -> bool:
    """Append it and return True, unless its order is there already."""
    known = {(one.subject, one.order) for one in kept_examples(path)}
    if (example.subject, example.order) in known:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        file.write(_EXAMPLE.dump_json(example, exclude_defaults=True) + b"\n")
    return True


def _key(result: Result) -> tuple[str, str, int]:
    return result.subject, result.series, result.number


def _read(path: Path) -> Iterator[Result]:
    if path.exists():
        for line in path.read_text("utf-8").splitlines():
            try:
                yield _RESULT.validate_json(line)
            except ValueError:
                continue  # the last line of a run that was killed, or of an older form
