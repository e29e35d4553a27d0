"""Seconds and bytes of one image through a model's encoder, over ten sizes, in a started engine.

    python benchmarks/gpu_encoder.py [--model Qwen/Qwen2.5-VL-3B-Instruct] [--most-px 3584]

Prints a Markdown table. Weights are dummies; bytes are the peak above what the engine holds, with
the batched input on the device already. Needs what gpu_accuracy.py needs. Where no GPU is, two
layers of each stack run on the CPU, whose seconds and bytes are not a GPU's.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from gpu import surroundings  # noqa: E402

from mmcalib.engine.environment import child_environment  # noqa: E402
from mmcalib.engine.messages import StartEngine  # noqa: E402
from mmcalib.models.catalogue import find_model  # noqa: E402
from mmcalib.models.checkpoint import materialise  # noqa: E402
from mmcalib.models.cut import cut_checkpoint, read_config, read_depths  # noqa: E402

SIZES = 10
# The smallest has this share of the largest's pixels.
SPAN = 1 / 64
_PREPARED = "MMCALIB_BENCHMARK_PREPARED"


def sides_px(most_px: int) -> list[int]:
    """Sides of square images whose pixels grow by equal factors, the smallest first."""
    return [round(most_px * SPAN ** ((1 - n / (SIZES - 1)) / 2)) for n in range(SIZES)]


def measure(model: str, most_px: int, scratch: Path) -> None:
    """Start the engine and print a row for each size. Each size runs twice: the first run makes
    what later ones find.
    """
    from PIL import Image

    from mmcalib.child.engine import start_engine
    from mmcalib.releases import platform

    geometry = find_model(model)
    if geometry is None:
        sys.exit(f"gpu_encoder: {model} is not bundled with mmcalib")
    on_cpu = platform.current().is_cpu()
    folder = materialise(geometry, scratch / "whole")
    if on_cpu:
        folder = cut_checkpoint(folder, scratch / "cut", 2)
    true = read_depths(read_config(folder))
    args = {
        "model": str(folder),
        "load_format": "dummy",
        "dtype": "bfloat16",
        "enforce_eager": True,
        "max_model_len": 4096 if on_cpu else None,
        "limit_mm_per_prompt": {"image": 1, "video": 0, "audio": 0},
    }
    request = StartEngine(args, true, 0)
    llm, started = start_engine(request, lambda said: print(said, file=sys.stderr))
    print(f"\n{model} on {started.device}, vLLM {surroundings.vllm_version()}\n")
    print("| image | tokens | ms | µs per token | MiB | KiB per token |\n|---|--:|--:|--:|--:|--:|")
    for side in sides_px(most_px):
        blank = Image.new("RGB", (side, side))
        for _ in range(2):
            found = llm.collective_rpc("mmcalib_encode", args=("image", blank))[0]
        tokens, seconds, peak = found
        print(
            f"| {side}×{side} | {tokens:,} | {seconds * 1e3:.1f} | {seconds / tokens * 1e6:.1f} "
            f"| {peak / 2**20:,.1f} | {peak / 2**10 / tokens:,.1f} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="Qwen/Qwen2.5-VL-3B-Instruct", help="a bundled model")
    parser.add_argument("--most-px", type=int, default=3584, help="side of the largest image")
    given = parser.parse_args()
    surroundings.prepare("auto")
    if _PREPARED not in os.environ:
        env = {**child_environment(os.environ), _PREPARED: "1"}
        os.execve(sys.executable, [sys.executable, *sys.argv], env)
    with tempfile.TemporaryDirectory(prefix="mmcalib-benchmark-") as scratch:
        measure(given.model, given.most_px, Path(scratch))


if __name__ == "__main__":
    main()
