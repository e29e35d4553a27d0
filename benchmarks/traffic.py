"""Serving rehearsed: three models, two corpora, by default, calibrated, and in the worst order.

    python benchmarks/traffic.py --media sample [--model ID] [--out FILE]

Each row is what vLLM's scheduler and model runner did on the imaginary GPU; nothing here needs one.
The calibration is that of `mmcalib run --validate none` over the same corpus. With --model, other
models' rows are kept as they are.

The worst order is the worst of some that are made for it: rounds, in each of which a batch of new
images fills a step, and the lightest image of every batch so far comes once more before the next.
It keeps its whole batch in memory, as vLLM's encoder cache holds views.
"""

from __future__ import annotations

import argparse
import itertools
import json
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from pages import page

from mmcalib import Calibration
from mmcalib.domain.memory import Budget
from mmcalib.domain.shapes import Shape
from mmcalib.domain.traffic import Arrivals, Trace, TrafficItem, TrafficRequest
from mmcalib.models.cut import cut_checkpoint
from mmcalib.models.gpus import resolve_gpu
from mmcalib.models.resolve import cache_dir, resolve
from mmcalib.prediction.rehearse import Rehearsals
from mmcalib.results.calibration import CalibrationDocument
from mmcalib.results.memory import TrafficFigures
from mmcalib.workflows.traffic.rehearse import serve_trace

ROOT = Path(__file__).resolve().parent.parent
GPU = "L4"
# With what else `run` is asked: by its own context of 262,144 tokens Qwen3-VL does not start there.
MODELS: dict[str, tuple[str, ...]] = {
    "Qwen/Qwen2.5-VL-3B-Instruct": (),
    "Qwen/Qwen3-VL-2B-Instruct": ("--max-model-len", "32768"),
    "OpenGVLab/InternVL2-2B": (),
}
# Of the sample: its requests, and its images each by itself.
CORPORA = {"requests": ("--requests", "requests.jsonl"), "images": ("--data", "image")}
MIB = 1 << 20
# Sizes of images, from the lightest to the heaviest, and requests of an order.
SHAPES, MOST_REQUESTS = 4, 240


@dataclass(frozen=True, slots=True)
class Row:
    """One configuration of one model over one corpus; bytes."""

    model: str
    corpus: str
    order: str
    requests: int
    steps: int
    peak_bytes: int
    reserved_bytes: int
    margin_bytes: int
    held_up: int
    preempted: int
    alive_bytes: int
    seconds: float

    @classmethod
    def of(cls, model: str, corpus: str, order: str, found: TrafficFigures) -> Row:
        return cls(
            *(model, corpus, order, found.requests, found.steps, found.peak_bytes),
            *(found.reserved_bytes, found.margin_bytes, found.encoder_waits, found.preemptions),
            *(found.cache_alive_bytes, found.seconds),
        )


def mmcalib(*words: str) -> str:
    """What the command prints. Raises CalledProcessError where it ends otherwise than 0 or 3."""
    command = [sys.executable, "-m", "mmcalib", *words]
    print("+", shlex.join(words), file=sys.stderr, flush=True)
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 3):
        raise subprocess.CalledProcessError(done.returncode, command, done.stdout, done.stderr)
    return done.stdout


def orders(shapes: Sequence[Shape], budget: Budget, embeds: Mapping[Shape, int]) -> Iterator[Trace]:
    """Of one kind of image in each batch, or of one with many larger ones."""
    room = min(budget.encoder_compute_budget, budget.encoder_cache_size)
    pairs = [(one, one) for one in shapes] + list(itertools.combinations(shapes, 2))
    for first, rest in pairs:
        many = (room - embeds[first]) // embeds[rest]
        batch = [first, *[rest] * min(many, budget.max_num_seqs - 1)]
        requests: list[TrafficRequest] = []
        lightest: list[TrafficItem] = []
        for number in itertools.count():
            new = [TrafficItem(shape, f"{number}.{n}") for n, shape in enumerate(batch)]
            if len(requests) + len(lightest) + len(new) > MOST_REQUESTS:
                break
            for group in (*([one] for one in lightest), new):
                # Each comes when all before it have their answers.
                sent_s = requests[-1].sent_s + 1000 if requests else 0.0
                requests += [TrafficRequest(i.content, 8, 1, (i,), sent_s=sent_s) for i in group]
            lightest.append(new[0])
        yield Trace(tuple(requests), ())


def worst_order(calibration: CalibrationDocument, scratch: Path) -> TrafficFigures:
    """What the worst of these orders takes under the calibrated configuration."""
    known = calibration.costs.modalities["image"].known
    embeds = {one.shape: one.embeds for one in known}
    sizes = sorted({size: shape for shape, size in embeds.items()}.items())
    places = {round(n * (len(sizes) - 1) / (SHAPES - 1)) for n in range(SHAPES)}
    model = Path(resolve(calibration.model.id, cache_dir=cache_dir()).path)
    with Rehearsals(resolve_gpu(GPU)) as rehearsals:
        args = {**calibration.engine_config, "model": str(model)}
        started = rehearsals.rehearse(args)
        assert started.budget is not None
        cut = cut_checkpoint(model, scratch / "served")
        shapes = [sizes[place][1] for place in sorted(places)]
        found = [
            serve_trace(rehearsals, cut, args, started, asked, Arrivals(timed=True))
            for asked in orders(shapes, started.budget, embeds)
        ]
    return max(found, key=lambda one: one.peak_bytes)


def rows(model: str, media: Path, scratch: Path) -> Iterator[Row]:
    for corpus, (option, name) in CORPORA.items():
        out = scratch / f"{model.replace('/', '--')}-{corpus}"
        source = [option, str(media / name), *MODELS.get(model, ())]
        written = ["--gpu", GPU, "--validate", "none", "--out", str(out)]
        mmcalib("run", "--model", model, *source, *written, "--quiet")
        calibration = Calibration.load(out / "calibration.json")
        traffic = calibration.traffic
        if traffic is None:
            print(f"{model} would not start on {GPU} with its own context", file=sys.stderr)
            continue
        if traffic.default is not None:
            yield Row.of(model, corpus, "default", traffic.default)
        yield Row.of(model, corpus, "calibrated", traffic.calibrated)
        yield Row.of(model, corpus, "worst order", worst_order(calibration, out))


def page_of(rows: Sequence[Row]) -> str:
    filters: dict[str, Callable[..., str]] = {
        "figure": lambda value: f"{value:,}",
        "mib": lambda nbytes: f"{nbytes / MIB:,.0f} MiB",
    }
    return page(Path(__file__).with_suffix(".md.j2"), filters, rows=rows, gpu=GPU)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--media", type=Path, required=True)
    parser.add_argument("--model", action="append")
    parser.add_argument("--out", type=Path, default=ROOT / "reports" / "traffic.md")
    given = parser.parse_args()
    kept = given.out.with_suffix(".json")
    known = [Row(**row) for row in json.loads(kept.read_text())] if kept.exists() else []
    wanted = given.model or MODELS
    for model in wanted:
        with tempfile.TemporaryDirectory() as scratch:
            new = list(rows(model, given.media.resolve(), Path(scratch)))
        known = [row for row in known if row.model != model] + new
        known.sort(key=lambda row: (row.model, row.corpus))
        kept.write_text(json.dumps([asdict(row) for row in known], indent=1) + "\n")
        given.out.write_text(page_of(known))
        print(time.strftime("%H:%M:%S"), model, len(new), "rows", file=sys.stderr)


if __name__ == "__main__":
    main()
