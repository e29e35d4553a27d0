"""How long a rehearsal takes, and what its process needs, for models of three sizes.

    python benchmarks/rehearsal_speed.py [--gpu H100-80G] [--out FILE]

A cold rehearsal starts a process and imports vLLM; further ones vary the configuration in it.
Needs vLLM and no GPU; the models are bundled geometries without weights. Exits 1 where an aim is
missed.
"""

from __future__ import annotations

import argparse
import itertools
import os
import platform
import re
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from mmcalib.engine.host import EngineHost  # noqa: E402
from mmcalib.engine.messages import Rehearse  # noqa: E402
from mmcalib.models.catalogue import find_model  # noqa: E402
from mmcalib.models.checkpoint import materialise  # noqa: E402
from mmcalib.models.gpus import Gpu, find_gpu  # noqa: E402

MODELS = tuple(f"Qwen/Qwen2.5-VL-{size}-Instruct" for size in ("3B", "7B", "72B"))
# Configurations that differ in what a calibration varies, no two alike.
FURTHER: tuple[dict[str, Any], ...] = tuple(
    {
        "limit_mm_per_prompt": {"image": 1 + turn % 4, "video": turn % 2},
        "mm_processor_kwargs": {"max_pixels": 28 * 28 * (1280 + 640 * (turn % 5))},
        "max_num_batched_tokens": 4096 + 1024 * (turn % 7),
        "max_num_seqs": 16 << turn % 5,
        "max_model_len": 16_384 + 2048 * turn,
    }
    for turn in range(20)
)
# What a user was promised: the job rehearses some twenty configurations, and waits for them.
AIMS = {"cold, s": 30.0, "further, median, s": 2.0, "20 further, s": 60.0, "peak GiB": 3.0}


def measured(model_id: str, gpu: Gpu, folder: Path) -> tuple[float, ...]:
    """Rehearse the defaults and then the configurations in one child; return a figure per aim."""
    geometry = find_model(model_id)
    assert geometry is not None
    model = str(materialise(geometry, folder / model_id.replace("/", "--")))
    times = [time.perf_counter()]
    with EngineHost() as host:
        for further in ({}, *FURTHER):
            host.ask(Rehearse({"model": model, **further}, gpu), "rehearsing")
            times.append(time.perf_counter())
        status = Path(f"/proc/{host.pid}/status").read_text(encoding="utf-8")
    cold_s, *further_s = (after - before for before, after in itertools.pairwise(times))
    peak = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert peak is not None
    return cold_s, statistics.median(further_s), sum(further_s), int(peak[1]) / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--gpu", default="H100-80G", help="the GPU to imagine (H100-80G)")
    parser.add_argument("--out", type=Path, help="write the table to this file as well")
    given = parser.parse_args()
    lines = [f"| model | {' | '.join(AIMS)} |", f"|---|{'--:|' * len(AIMS)}"]
    lines += [f"| aim | {' | '.join(f'{most:.2f}' for most in AIMS.values())} |"]
    missed = []
    with tempfile.TemporaryDirectory(prefix="mmcalib-benchmark-") as folder:
        for model_id in MODELS:
            found = measured(model_id, find_gpu(given.gpu), Path(folder))
            lines.append(f"| {model_id} | {' | '.join(f'{figure:.2f}' for figure in found)} |")
            print(lines[-1], file=sys.stderr, flush=True)
            pairs = zip(AIMS.items(), found, strict=True)
            missed += [f"{model_id}: {name} {n:.2f}" for (name, most), n in pairs if n > most]
    on = f"On {os.cpu_count()} CPUs, Python {platform.python_version()}; imagined GPU: {given.gpu}."
    heading = "# How long a rehearsal takes\n\n`python benchmarks/rehearsal_speed.py`\n"
    text = "\n".join([heading, *lines, "", on, ""])
    print(text, end="")
    if given.out is not None:
        given.out.write_text(text, encoding="utf-8")
    if missed:
        sys.exit("missed: " + "; ".join(missed))


if __name__ == "__main__":
    main()
