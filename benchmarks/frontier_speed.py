"""How long it takes to explore the frontier of a large corpus.

    python benchmarks/frontier_speed.py [--model ID] [--images N] [--out FILE]

Every image has a shape of its own, as photos that people cropped; the media are blanks. Needs vLLM
and no GPU; the model is a bundled geometry without weights.
"""

from __future__ import annotations

import argparse
import os
import platform
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from mmcalib.census.census import Census  # noqa: E402
from mmcalib.census.prompts import PromptCensus  # noqa: E402
from mmcalib.checks.facts import Explored  # noqa: E402
from mmcalib.decision.decide import count_items  # noqa: E402
from mmcalib.decision.explore import BudgetSource, explore, relevant_knobs  # noqa: E402
from mmcalib.decision.measure import measure  # noqa: E402
from mmcalib.derive import limits  # noqa: E402
from mmcalib.derive.policy import Policy  # noqa: E402
from mmcalib.domain.knobs import DEFAULT  # noqa: E402
from mmcalib.domain.shapes import ImageShape, VideoShape  # noqa: E402
from mmcalib.engine.host import EngineHost  # noqa: E402
from mmcalib.engine.messages import OpenModel  # noqa: E402
from mmcalib.models.catalogue import find_model  # noqa: E402
from mmcalib.models.checkpoint import materialise  # noqa: E402
from mmcalib.progress import Silent  # noqa: E402

QWEN = "Qwen/Qwen2.5-VL-3B-Instruct"
# What a user was promised for 500 shapes.
MAX_SWEEP_S = 60.0
MIN_POINTS = 8
_RATIOS = (4 / 3, 3 / 2, 16 / 9, 1.0, 2.0, 3 / 4, 9 / 16)
# (width, height, seconds, frames per second)
_CLIPS = (
    (640, 360, 10, 30.0),
    (1280, 720, 5, 25.0),
    (1920, 1080, 8, 30.0),
    (640, 480, 30, 24.0),
    (854, 480, 20, 29.97),
    (320, 240, 60, 15.0),
)


@dataclass(frozen=True, slots=True)
class Phase:
    """One step, its wall seconds, and the points that it gave, of which some are counted."""

    name: str
    seconds: float
    points: Sequence[Explored] = ()

    @property
    def counted(self) -> int:
        return sum(explored.point.counted for explored in self.points)


def corpus(images: int) -> Census:
    """Photos of 0.002 to 36 megapixels, a million pixels in the middle, and a few clips."""
    chance, census = random.Random(7), Census()
    seen: set[ImageShape] = set()
    while len(seen) < images:
        width = min(6000, max(48, round(chance.lognormvariate(7.0, 0.7))))
        ratio = chance.choice(_RATIOS) * chance.uniform(0.9, 1.1)
        shape = ImageShape(width, min(6000, max(48, round(width / ratio))))
        if shape not in seen:
            seen.add(shape)
            census.add(shape, f"/photos/{len(seen):05}.jpg", chance.randint(1, 9))
    for width, height, seconds, fps in _CLIPS:
        frames = int(seconds * fps)
        clip = VideoShape(frames, fps, frames / fps, width, height)
        census.add(clip, f"/clips/{width}x{height}.mp4")
    return census


def sweep(model_id: str, images: int, folder: Path) -> list[Phase]:
    """Open, measure under the defaults, then every knob in turn."""
    geometry = find_model(model_id)
    assert geometry is not None
    model = str(materialise(geometry, folder / model_id.replace("/", "--")))
    phases = []
    with EngineHost() as host:
        started = time.perf_counter()

        def done(name: str, points: Sequence[Explored] = ()) -> None:
            nonlocal started
            phases.append(Phase(name, time.perf_counter() - started, points))
            print(f"{name}: {phases[-1].seconds:.1f} s", file=sys.stderr, flush=True)
            started = time.perf_counter()

        opened = host.ask(OpenModel(model), "opening the model")
        done("open the model, find its knobs")
        census = corpus(images)
        budgets = BudgetSource(host, opened, model, Policy())
        table, _ = measure(host, census, DEFAULT, [], Silent())
        done("measure every shape under the defaults")
        per_prompt = limits.limit_mm_per_prompt(
            count_items(opened, Policy(), table, PromptCensus()), {}
        )
        for knob in relevant_knobs(budgets, table):
            done(knob.name, explore(knob, table, per_prompt, budgets, Silent()))
    return phases


def table(model_id: str, images: int, phases: Sequence[Phase]) -> str:
    lines = ["| phase | s | points | of them counted |", "|---|--:|--:|--:|"]
    for phase in phases:
        points = f"{len(phase.points)} | {phase.counted}" if phase.points else "— | —"
        name = f"`{phase.name}`" if phase.points else phase.name
        lines.append(f"| {name} | {phase.seconds:.1f} | {points} |")
    lines += [
        f"| **the whole frontier** | **{swept(phases):.1f}** "
        f"| {sum(len(phase.points) for phase in phases)} "
        f"| {sum(phase.counted for phase in phases)} |",
        "",
        f"{model_id}, {images} image shapes and {len(_CLIPS)} videos, on {os.cpu_count()} CPUs, "
        f"Python {platform.python_version()}. Aim: {MAX_SWEEP_S:.0f} s for the frontier of 500 "
        f"shapes, {MIN_POINTS} points per modality. *Counted*: most shapes by vLLM's own count of "
        "their size, which had to agree with all shapes measured under the defaults and with the "
        "spots that were processed for each point; else every shape is processed.",
    ]
    return "\n".join(lines) + "\n"


def swept(phases: Sequence[Phase]) -> float:
    return sum(phase.seconds for phase in phases if phase.points)


def misses(phases: Sequence[Phase]) -> list[str]:
    found = []
    if swept(phases) > MAX_SWEEP_S:
        found.append(f"the frontier took {swept(phases):.1f} s")
    few = [phase for phase in phases if 0 < len(phase.points) < MIN_POINTS]
    return [*found, *(f"{phase.name} has {len(phase.points)} points" for phase in few)]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", default=QWEN, help=f"a bundled model ({QWEN})")
    parser.add_argument("--images", type=int, default=500, help="image shapes (500)")
    parser.add_argument("--out", type=Path, help="write the table to this file as well")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mmcalib-benchmark-") as folder:
        phases = sweep(arguments.model, arguments.images, Path(folder))
    text = table(arguments.model, arguments.images, phases)
    print(text, end="")
    if arguments.out is not None:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        heading = "# How long the frontier takes\n\n`python benchmarks/frontier_speed.py`\n\n"
        arguments.out.write_text(heading + text, encoding="utf-8")
    if missed := misses(phases):
        sys.exit("missed: " + "; ".join(missed))


if __name__ == "__main__":
    main()
