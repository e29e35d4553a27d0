"""What a calibration costs as a corpus grows in items and in distinct sizes, and what a log of
requests costs as it grows.

    python benchmarks/scale.py [--model ID,ID] [--grid 2000x1,2000x2000] [--gpu L4] [--out FILE]
        [--modalities image,video,audio] [--requests 100000,1000000]

Each corpus is made anew of files without content, as many of each modality, and calibrated by
`mmcalib run --validate budget`, in a process of its own. Needs vLLM and no GPU; models are bundled
geometries without weights. Beside it stand the limits of what it is made of: Pillow's headers,
vLLM's processor, vLLM's import. `--requests` has `mmcalib scan` read chat requests, which needs no
vLLM; with `--grid ""` nothing else is measured.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from chat_requests import PICTURES, make_requests  # noqa: E402
from empty_media import LEAST_PX, MOST_PX, SEED, make  # noqa: E402
from measured_command import measured  # noqa: E402

from mmcalib.domain.knobs import DEFAULT  # noqa: E402
from mmcalib.domain.shapes import ImageShape  # noqa: E402
from mmcalib.engine.host import EngineHost  # noqa: E402
from mmcalib.engine.messages import Blank, CountEmbeds, Measure, OpenModel  # noqa: E402
from mmcalib.models.catalogue import find_model  # noqa: E402
from mmcalib.models.checkpoint import materialise  # noqa: E402

QWEN = "Qwen/Qwen2.5-VL-3B-Instruct"
_GRID = "2000x1,2000x2000,10000x100,10000x10000"
# Of what is timed by itself.
_PROCESSED, _COUNTED = 100, 20_000


@dataclass(frozen=True, slots=True)
class Row:
    """One corpus, calibrated: all measured. `processed` is in words, of each modality."""

    model: str
    items: int
    shapes: int
    wall_s: float
    cpu_s: float
    parent_bytes: int
    document_bytes: int
    report_bytes: int
    processed: str
    longest_step: str


@dataclass(frozen=True, slots=True)
class RequestsRow:
    """A log of requests, scanned: all measured."""

    requests: int
    log_bytes: int
    wall_s: float
    cpu_s: float
    parent_bytes: int


@dataclass(frozen=True, slots=True)
class Floor:
    """What one of the things that a calibration is made of takes by itself."""

    name: str
    seconds: float
    of: int


def main() -> None:
    asked = _asked()
    with tempfile.TemporaryDirectory(prefix="mmcalib-scale-") as scratch:
        rows: list[Row] = []
        logs: list[RequestsRow] = []
        models = asked.model.split(",")
        grid = _grid(asked.grid)
        floors = list(_vllm(models[0])) if grid else []
        for items, shapes in grid:
            folder = Path(scratch) / f"{items}x{shapes}"
            for modality in asked.modalities.split(","):
                make(folder / modality, items, shapes, modality)
            if not rows:
                floors.append(_headers(folder))
            for model in models:
                rows.append(_calibrated(folder, model, asked))
                _keep(_page(rows, floors, logs, asked), asked)
                print(rows[-1], file=sys.stderr, flush=True)
        for requests in map(int, filter(None, asked.requests.split(","))):
            logs.append(_scanned(Path(scratch) / f"{requests} requests", requests))
            _keep(_page(rows, floors, logs, asked), asked)
            print(logs[-1], file=sys.stderr, flush=True)
    print(_page(rows, floors, logs, asked))


def _keep(page: str, asked: argparse.Namespace) -> None:
    """Hours may follow: what is known is kept."""
    if asked.out:
        Path(asked.out).write_text(page, encoding="utf-8")


def _asked() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default=QWEN, help="one or more, comma between")
    parser.add_argument("--modalities", default="image", help="items of each; comma between")
    parser.add_argument("--grid", default=_GRID, help="items x distinct sizes; comma between")
    parser.add_argument("--requests", default="", help="so many in a log; comma between")
    parser.add_argument("--gpu", default="", help="rehearse memory and traffic on it too")
    parser.add_argument("--out", default="")
    return parser.parse_args()


def _grid(text: str) -> list[tuple[int, int]]:
    pairs = (part.split("x") for part in filter(None, text.split(",")))
    return [(int(items), int(shapes)) for items, shapes in pairs]


def _calibrated(folder: Path, model: str, asked: argparse.Namespace) -> Row:
    out = folder.parent / f"{folder.name}.{model.rpartition('/')[2]}.out"
    words = ["run", "--model", model, "--data", str(folder), "--out", str(out), "--force"]
    words += ["--validate", "budget", *(["--gpu", asked.gpu] if asked.gpu else [])]
    took = measured(words, folder.parent / "cache")
    document = out / "calibration.json"
    found = json.loads(document.read_text("utf-8"))["corpus"]["modalities"]
    return Row(
        model,
        sum(one["items"] for one in found.values()),
        sum(one["unique_shapes"] for one in found.values()),
        took.wall_s,
        took.cpu_s,
        took.parent_bytes,
        document.stat().st_size,
        (out / "report.html").stat().st_size,
        ", ".join(f"{name} {_processed(one)}" for name, one in found.items()),
        _longest(took.said),
    )


def _scanned(folder: Path, requests: int) -> RequestsRow:
    log = make_requests(folder, requests)
    took = measured(["scan", "--requests", str(log)], folder / "cache")
    size = log.stat().st_size
    row = RequestsRow(requests, size, took.wall_s, took.cpu_s, took.parent_bytes)
    shutil.rmtree(folder)
    return row


def _processed(found: dict[str, Any]) -> str:
    """Who counted the others."""
    if found["witnesses"] is None:
        return "all"
    return f"{found['witnesses']:,}, vLLM's count the rest"


def _longest(said: str) -> str:
    """The step that took longest, as it was said: `name: 12, 3/s, 4.5 s`."""
    steps = []
    for line in said.splitlines():
        name, _, rest = line.partition(": ")
        last = rest.rpartition(", ")[2] or rest
        if last.endswith(" s") and last[:-2].replace(".", "", 1).isdigit():
            steps.append((float(last[:-2]), name))
    seconds, name = max(steps, default=(0.0, "none"))
    return f"{name}, {seconds:.0f} s"


def _headers(folder: Path) -> Floor:
    paths = sorted(folder.rglob("*.png"))
    began = time.monotonic()
    for path in paths:
        with Image.open(path) as image:
            _ = image.size
    return Floor("Pillow's header of an image", time.monotonic() - began, len(paths))


def _vllm(model: str) -> Iterator[Floor]:
    chance = random.Random(SEED)
    geometry = find_model(model)
    if geometry is None:
        raise SystemExit(f"{model} is not bundled")
    shapes = [
        ImageShape(chance.randint(LEAST_PX, MOST_PX), chance.randint(LEAST_PX, MOST_PX))
        for _ in range(_COUNTED)
    ]
    blanks = tuple(map(Blank, shapes))
    with tempfile.TemporaryDirectory() as cache, EngineHost() as host:
        path = materialise(geometry, Path(cache))
        began = time.monotonic()
        host.ask(OpenModel(str(path), search_knobs=False), "opening")
        yield Floor("vLLM's import, and the model opened", time.monotonic() - began, 1)
        began = time.monotonic()
        _ = list(host.measure(Measure(DEFAULT, blanks[:_PROCESSED]), "measuring"))
        yield Floor("vLLM's processor on one blank", time.monotonic() - began, _PROCESSED)
        host.ask(CountEmbeds(DEFAULT, blanks[:1]), "counting")
        began = time.monotonic()
        host.ask(CountEmbeds(DEFAULT, blanks), "counting")
        yield Floor("vLLM's count of one size", time.monotonic() - began, _COUNTED)


def _page(
    rows: Sequence[Row],
    floors: Sequence[Floor],
    logs: Sequence[RequestsRow],
    asked: argparse.Namespace,
) -> str:
    gpu = f" --gpu {asked.gpu}" if asked.gpu else ""
    if asked.modalities != "image":
        gpu += f" --modalities {asked.modalities}"
    if asked.requests:
        gpu += f" --requests {asked.requests}"
    grid = asked.grid or '""'
    lines = [
        "# What a calibration costs as the corpus grows",
        "",
        f"`python benchmarks/scale.py --model {asked.model} --grid {grid}{gpu}`",
        "",
        *(_corpora(rows, floors) if rows else []),
        *(_logs(logs) if logs else []),
        f"All measured, on {os.cpu_count()} CPUs, Python {platform.python_version()}, the load "
        f"{os.getloadavg()[2]:.1f} in the last quarter of an hour. `CPU s` are those of the parent "
        "and its children that had ended; on a machine that others share they say more than "
        f"`wall s`. Images have sides of {LEAST_PX} to {MOST_PX} pixels, videos 2 to 40 frames of "
        "64 to 480, sounds a minute at most.",
        "",
    ]
    return "\n".join(lines)


def _corpora(rows: Sequence[Row], floors: Sequence[Floor]) -> Iterator[str]:
    yield (
        "| model | items | distinct sizes | wall s | CPU s | parent's peak MB "
        "| calibration.json kB | report.html kB | processed, of the sizes | longest step |"
    )
    yield "|---|--:|--:|--:|--:|--:|--:|--:|---|---|"
    for row in rows:
        yield (
            f"| {row.model} | {row.items:,} | {row.shapes:,} | {row.wall_s:.0f} | {row.cpu_s:.0f} "
            f"| {row.parent_bytes / 1e6:.0f} | {row.document_bytes / 1e3:.0f} "
            f"| {row.report_bytes / 1e3:.0f} | {row.processed} | {row.longest_step} |"
        )
    yield from ("", "What it is made of, by itself:", "", "| | s | each |", "|---|--:|--:|")
    for floor in floors:
        each = floor.seconds / floor.of
        yield f"| {floor.name} | {floor.seconds:.1f} of {floor.of:,} | {each * 1e3:.3f} ms |"
    yield ""


def _logs(logs: Sequence[RequestsRow]) -> Iterator[str]:
    yield from ("## Requests", "")
    yield f"`mmcalib scan --requests FILE`, chat requests that name {PICTURES:,} pictures:"
    yield ""
    yield "| requests | kB each | wall s | CPU s | parent's peak MB |"
    yield "|--:|--:|--:|--:|--:|"
    for log in logs:
        yield (
            f"| {log.requests:,} | {log.log_bytes / log.requests / 1e3:.1f} | {log.wall_s:.0f} "
            f"| {log.cpu_s:.0f} | {log.parent_bytes / 1e6:.0f} |"
        )
    yield ""


if __name__ == "__main__":
    main()
