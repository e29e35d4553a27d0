"""JSON lines that are written as they come: a stop loses nothing."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any


def append(path: Path, fields: Mapping[str, Any]) -> None:
    """One line more, on disk when this returns."""
    with path.open("ab") as file:
        # A line that a kill cut short must not swallow this one.
        if file.tell() and not _ends_line(path):
            file.write(b"\n")
        file.write(json.dumps(fields).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Every whole line of the file; none where it is not there."""
    if not path.is_file():
        return
    for line in path.read_bytes().splitlines():
        try:
            yield json.loads(line)
        except ValueError:
            continue


def _ends_line(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"
