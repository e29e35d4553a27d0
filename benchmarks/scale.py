"""What a calibration costs as a corpus grows in items and in distinct sizes.

    python benchmarks/scale.py [--model ID,ID] [--grid 2000x1,2000x2000] [--gpu L4] [--out FILE]
        [--modalities image,video,audio]

Each corpus is made anew of files without content, as many of each modality, and calibrated by
`mmcalib run --validate budget`, in a process of its own. Needs vLLM and no GPU; models are bundled
geometries without weights.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from empty_media import LEAST_PX, MOST_PX, make

ROOT = Path(__file__).resolve().parent.parent
QWEN = "Qwen/Qwen2.5-VL-3B-Instruct"
_GRID = "2000x1,2000x2000,10000x100,10000x10000"
# Exit codes of a command that came to its end: the verdict is pass, or fail.
_ANSWERED = (0, 3)
# Runs `mmcalib`, then says what its own process took, and what it took with all its children.
_MEASURED = """
import json, resource, sys
from mmcalib.cli import main
try:
    main()
except SystemExit as ended:
    code = ended.code
own, all_ = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
cpu = sum(use.ru_utime + use.ru_stime for use in (own, all_))
print("USAGE", json.dumps({"code": code, "peak_kib": own.ru_maxrss, "cpu_s": cpu}), file=sys.stderr)
"""
_HEAD = (
    *("model", "items", "distinct sizes", "wall s", "CPU s", "parent's peak MB"),
    *("calibration.json kB", "report.html kB", "processed, of the sizes", "longest step"),
)


class Usage(NamedTuple):
    """What a command took: all measured, `parent_bytes` the peak of its own process alone. `said`
    is its stderr.
    """

    wall_s: float
    cpu_s: float
    parent_bytes: int
    said: str


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default=QWEN, help="one or more, comma between")
    parser.add_argument("--modalities", default="image", help="items of each; comma between")
    parser.add_argument("--grid", default=_GRID, help="items x distinct sizes; comma between")
    parser.add_argument("--gpu", default="", help="rehearse memory and traffic on it too")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    rows: list[str] = []
    with tempfile.TemporaryDirectory(prefix="mmcalib-scale-") as scratch:
        for size in asked.grid.split(","):
            folder = Path(scratch) / size
            items, shapes = map(int, size.split("x"))
            for modality in asked.modalities.split(","):
                make(folder / modality, items, shapes, modality)
            for model in asked.model.split(","):
                rows.append(_calibrated(folder, model, asked.gpu))
                print(rows[-1], file=sys.stderr, flush=True)
                # Hours may follow: what is known is kept.
                if asked.out:
                    asked.out.write_text(_page(rows, asked), encoding="utf-8")
    print(_page(rows, asked))


def measured(words: Sequence[str], cache: Path) -> Usage:
    """Run `mmcalib` with these words, which remembers in `cache`. Ends the program if it fails."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "NO_COLOR": "1",
        "MMCALIB_CACHE_DIR": str(cache),
    }
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", _MEASURED, *words],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    wall = time.monotonic() - began
    said = [line for line in done.stderr.splitlines() if line.startswith("USAGE ")]
    usage = json.loads(said[-1].removeprefix("USAGE ")) if said else {"code": done.returncode}
    if usage["code"] not in _ANSWERED:
        raise SystemExit(f"mmcalib {words[0]} ended with {usage['code']}:\n{done.stderr[-3000:]}")
    return Usage(wall, usage["cpu_s"], usage["peak_kib"] * 1024, done.stderr)


def _calibrated(folder: Path, model: str, gpu: str) -> str:
    """Calibrate the model for the corpus, and return a row of the table."""
    out = folder.parent / f"{folder.name}.{model.rpartition('/')[2]}.out"
    words = ["run", "--model", model, "--data", str(folder), "--out", str(out), "--force"]
    words += ["--validate", "budget", *(["--gpu", gpu] if gpu else [])]
    took = measured(words, folder.parent / "cache")
    document = out / "calibration.json"
    found = json.loads(document.read_text("utf-8"))["corpus"]["modalities"]
    cells = (
        *(model, f"{sum(one['items'] for one in found.values()):,}"),
        f"{sum(one['unique_shapes'] for one in found.values()):,}",
        *(f"{took.wall_s:.0f}", f"{took.cpu_s:.0f}", f"{took.parent_bytes / 1e6:.0f}"),
        f"{document.stat().st_size / 1e3:.0f}",
        f"{(out / 'report.html').stat().st_size / 1e3:.0f}",
        ", ".join(f"{name} {_processed(one)}" for name, one in found.items()),
        _longest(took.said),
    )
    return f"| {' | '.join(cells)} |"


def _processed(found: dict[str, Any]) -> str:
    """Say how many shapes vLLM processed, and who counted the others."""
    if found["witnesses"] is None:
        return "all"
    return f"{found['witnesses']:,}, vLLM's count the rest"


def _longest(said: str) -> str:
    """Return the step that took longest, as it was said: `name: 12, 3/s, 4.5 s`."""
    steps = []
    for line in said.splitlines():
        name, _, rest = line.partition(": ")
        last = rest.rpartition(", ")[2] or rest
        if last.endswith(" s") and last[:-2].replace(".", "", 1).isdigit():
            steps.append((float(last[:-2]), name))
    seconds, name = max(steps, default=(0.0, "none"))
    return f"{name}, {seconds:.0f} s"


def _page(rows: Sequence[str], asked: argparse.Namespace) -> str:
    gpu = f" --gpu {asked.gpu}" if asked.gpu else ""
    lines = [
        "# What a calibration costs as the corpus grows",
        "",
        f"`python benchmarks/scale.py --model {asked.model} --grid {asked.grid}{gpu} "
        f"--modalities {asked.modalities}`",
        "",
        f"| {' | '.join(_HEAD)} |",
        f"|---|{'--:|' * (len(_HEAD) - 3)}---|---|",
        *rows,
        "",
        f"All measured, on {os.cpu_count()} CPUs, Python {platform.python_version()}, the load "
        f"{os.getloadavg()[2]:.1f} in the last quarter of an hour. `CPU s` are those of the parent "
        "and its children that had ended; on a machine that others share they say more than "
        f"`wall s`. Images have sides of {LEAST_PX} to {MOST_PX} pixels, videos 2 to 40 frames of "
        "64 to 480, sounds a minute at most.",
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
