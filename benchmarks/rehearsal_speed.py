"""How long a rehearsal takes, and what its process needs, for models of three sizes.

    python benchmarks/rehearsal_speed.py [--gpu H100-80G] [--out FILE]

A cold rehearsal starts a process and imports vLLM; further ones vary the configuration in it.
Needs vLLM and no GPU; the models are bundled geometries without weights.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from mmcalib.engine.host import EngineHost  # noqa: E402
from mmcalib.engine.messages import Rehearse  # noqa: E402
from mmcalib.models.catalogue import find_model as find_geometry  # noqa: E402
from mmcalib.models.checkpoint import materialise  # noqa: E402
from mmcalib.models.gpus import Gpu  # noqa: E402
from mmcalib.models.gpus import find_gpu as find_gpu  # noqa: E402

MODELS = tuple(f"Qwen/Qwen2.5-VL-{size}-Instruct" for size in ("3B", "7B", "72B"))
FURTHER = 20
# What a user was promised: the job rehearses some twenty configurations, and waits for them.
MAX_COLD_S, MAX_FURTHER_S, MAX_ALL_S, MAX_RESIDENT_GIB = 30.0, 2.0, 60.0, 3.0


@dataclass(frozen=True, slots=True)
class Timed:
    """Seconds as the asking process saw them; the child's largest resident memory in GiB."""

    model: str
    cold_s: float
    further_s: tuple[float, ...]
    resident_gib: float

    @property
    def misses(self) -> list[str]:
        figures = {
            f"cold {self.cold_s:.1f} s": self.cold_s > MAX_COLD_S,
            f"further {self.further_median_s:.2f} s": self.further_median_s > MAX_FURTHER_S,
            f"{FURTHER} more {sum(self.further_s):.1f} s": sum(self.further_s) > MAX_ALL_S,
            f"memory {self.resident_gib:.2f} GiB": self.resident_gib > MAX_RESIDENT_GIB,
        }
        return [f"{self.model}: {figure}" for figure, missed in figures.items() if missed]

    @property
    def further_median_s(self) -> float:
        return statistics.median(self.further_s)


def configurations() -> Iterator[dict[str, Any]]:
    """Twenty that differ in what a calibration varies, no two alike."""
    for turn in range(FURTHER):
        images, videos = 1 + turn % 4, turn % 2
        yield {
            "limit_mm_per_prompt": {"image": images, "video": videos},
            "mm_processor_kwargs": {"max_pixels": 28 * 28 * (1280 + 640 * (turn % 5))},
            "max_num_batched_tokens": 4096 + 1024 * (turn % 7),
            "max_num_seqs": 16 << turn % 5,
            "max_model_len": 16_384 + 2048 * turn,
        }


def timed(model_id: str, gpu: Gpu, folder: Path) -> Timed:
    """One child for this model: a first rehearsal of the defaults, then the configurations."""
    geometry = find_geometry(model_id)
    assert geometry is not None
    model = str(materialise(geometry, folder / model_id.replace("/", "--")))
    started = time.perf_counter()
    with EngineHost() as host:
        rehearse(host, gpu, {"model": model})
        cold_s = time.perf_counter() - started
        further_s = [rehearse(host, gpu, {"model": model, **one}) for one in configurations()]
        return Timed(model_id, cold_s, tuple(further_s), resident_gib(host.pid))


def rehearse(host: EngineHost, gpu: Gpu, engine_args: dict[str, Any]) -> float:
    started = time.perf_counter()
    host.ask(Rehearse(engine_args, gpu), "rehearsing")
    return time.perf_counter() - started


def resident_gib(pid: int) -> float:
    """The most memory the process ever held (Linux only)."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) / 2**20


def table(results: list[Timed], gpu: Gpu) -> str:
    lines = [
        f"| model | cold, s | each further, s: median (least to most) | {FURTHER} further, s "
        "| peak memory, GiB |",
        "|---|--:|--:|--:|--:|",
    ]
    for one in results:
        least, most = min(one.further_s), max(one.further_s)
        lines.append(
            f"| {one.model} | {one.cold_s:.1f} "
            f"| {one.further_median_s:.2f} ({least:.2f} to {most:.2f}) "
            f"| {sum(one.further_s):.1f} | {one.resident_gib:.2f} |"
        )
    lines += [
        "",
        f"On {os.cpu_count()} CPUs, Python {platform.python_version()}; imagined GPU: {gpu.name}. "
        f"Aims: cold {MAX_COLD_S:.0f} s, further {MAX_FURTHER_S:.0f} s, {FURTHER} further "
        f"{MAX_ALL_S:.0f} s, memory {MAX_RESIDENT_GIB:.0f} GiB whatever the model's size.",
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--gpu", default="H100-80G", help="the GPU to imagine (H100-80G)")
    parser.add_argument("--out", type=Path, help="write the table to this file as well")
    arguments = parser.parse_args()
    gpu = find_gpu(arguments.gpu)
    results = []
    with tempfile.TemporaryDirectory(prefix="mmcalib-benchmark-") as folder:
        for model_id in MODELS:
            print(f"{model_id} ...", file=sys.stderr, flush=True)
            results.append(timed(model_id, gpu, Path(folder)))
    text = table(results, gpu)
    print(text, end="")
    if arguments.out is not None:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        heading = "# How long a rehearsal takes\n\n`python benchmarks/rehearsal_speed.py`\n\n"
        arguments.out.write_text(heading + text, encoding="utf-8")
    missed = [figure for one in results for figure in one.misses]
    if missed:
        sys.exit("missed: " + "; ".join(missed))


if __name__ == "__main__":
    main()
