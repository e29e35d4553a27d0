"""`mmcalib run` for several GPUs at once, and its results kept so that a second call goes on."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from pydantic import TypeAdapter
from pydantic_core import to_json

from mmcalib.admission.calibration import Calibration

T = TypeVar("T")
_RUN = ("run", "--validate", "budget", "--force", "--quiet", "--no-thumbnails")


def calibrated(
    words: Sequence[str], gpus: Sequence[str], out: Path
) -> Iterator[tuple[str, Calibration | None, str]]:
    """Run the command once, which measures once for all GPUs. Yield each GPU with its calibration,
    None where no memory was rehearsed, and what was said.
    """
    command = [sys.executable, "-m", "mmcalib", *_RUN, *words]
    command += ["--gpu", ",".join(gpus), "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    said = " ".join(done.stderr.split())[-400:] or f"exit code {done.returncode}"
    comparison = out / "comparison.json"
    if len(gpus) == 1 or not comparison.is_file():
        yield from ((gpu, _loaded(out) if len(gpus) == 1 else None, said) for gpu in gpus)
        return
    for run in json.loads(comparison.read_text())["runs"]:
        said = " → ".join(filter(None, [run["problem"], run["remedy"]]))
        yield run["gpu"], _loaded(out / run["folder"]), said


def _loaded(folder: Path) -> Calibration | None:
    path = folder / "calibration.json"
    found = Calibration.load(path) if path.is_file() else None
    return found if found and found.memory.calibrated.label == "rehearsed" else None


def commit() -> str:
    """Return the short hash of the sources' commit."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short=8", "HEAD"]
    return subprocess.check_output(command, text=True).strip()


def retentions(found: Calibration) -> tuple[float, float]:
    """Return the least share that is kept of any modality's detail: on average, and of an item."""
    parts = [part.kept for part in found.corpus.modalities.values() if part.kept]
    mean = min((part.mean for part in parts), default=1.0)
    return mean, min((part.worst for part in parts), default=1.0)


def kept(path: Path, row: type[T]) -> list[T]:
    """Read the rows that an earlier call has kept in this file of JSON Lines."""
    rows_of: TypeAdapter[T] = TypeAdapter(row)
    lines = path.read_bytes().splitlines() if path.is_file() else []
    return [rows_of.validate_json(line) for line in lines]


def keep(path: Path, rows: Sequence[T]) -> None:
    """Append the rows, all in one write, so that several processes may share the file."""
    with path.open("ab", buffering=0) as lines:
        lines.write(b"".join(to_json(row) + b"\n" for row in rows))
