"""`mmcalib run` on the sample, in pairs with a bare `LLM(...)` start of the same cut model.

    python benchmarks/main_job.py [--rounds 3] [--model ID] [--gpu L4]

Both take what `mmcalib run` writes; the bare start compiles as vLLM does by default, with an empty
compile cache. Needs vLLM's CPU build and `datasets/materialise.py sample`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from mmcalib import Calibration  # noqa: E402
from mmcalib.engine.environment import shimmed_environment  # noqa: E402
from mmcalib.models.cut import cut_checkpoint  # noqa: E402
from mmcalib.models.resolve import resolve  # noqa: E402
from mmcalib.proof.start import CUT_LAYERS  # noqa: E402

# By default vLLM's CPU build takes a share of this machine's memory.
_SMALL = {"VLLM_CPU_KVCACHE_SPACE": "1"}
_BARE = """
import json, sys
from vllm import LLM
if __name__ == "__main__":
    LLM(**json.loads(sys.argv[1]))
"""


def run_s(model: str, gpu: str, out: Path) -> float:
    words = ["run", "--model", model, "--gpu", gpu, "--out", str(out), "--force", "--quiet"]
    words += ["--data", "sample/image", "--data", "sample/video"]
    words += ["--requests", "sample/requests.jsonl"]
    return _seconds([sys.executable, "-m", "mmcalib", *words], {})


def bare_s(args: dict[str, Any], scratch: Path) -> float:
    script = scratch / "bare.py"
    script.write_text(_BARE)
    with tempfile.TemporaryDirectory() as empty:
        return _seconds(
            [sys.executable, str(script), json.dumps(args)], {"VLLM_CACHE_ROOT": empty, **_SMALL}
        )


def _seconds(words: list[str], environment: dict[str, str]) -> float:
    began = time.monotonic()
    done = subprocess.run(
        words,
        cwd=ROOT,
        env={**shimmed_environment(os.environ), **environment},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise SystemExit(f"{words[1]} ended with {done.returncode}:\n{done.stderr[-3000:]}")
    return time.monotonic() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--model", default="Qwen/Qwen2.5-VL-3B-Instruct")
    parser.add_argument("--gpu", default="L4")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        source = Path(resolve(asked.model, cache_dir=scratch / "model").path)
        cut = cut_checkpoint(
            source, scratch / "cut", text_layers=CUT_LAYERS, encoder_layers=CUT_LAYERS
        )
        ratios = []
        for number in range(1, asked.rounds + 1):
            job = run_s(asked.model, asked.gpu, scratch / "out")
            args = Calibration.load(scratch / "out" / "calibration.json").engine_args()
            args |= {"model": str(cut.path), "load_format": "dummy"}
            bare = bare_s(args, scratch)
            ratios.append(job / bare)
            print(
                f"round {number}: run {job:.1f} s, bare {bare:.1f} s, {ratios[-1]:.2f} x",
                flush=True,
            )
        print(f"median {statistics.median(ratios):.2f} x, worst {max(ratios):.2f} x")


if __name__ == "__main__":
    main()
