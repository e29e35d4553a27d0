"""Process a corpus on a GPU and on the CPU, by the processors of several models; compare.

    python benchmarks/gpu_processors.py --data DIR --out DIR [--limit-s 470] [--only gemma]
    python benchmarks/gpu_processors.py --out DIR --render         the page again, needs no GPU
    python benchmarks/gpu_processors.py --data DIR --out DIR --device cpu   shows that it runs

DIR of --data holds image/, video/ and audio/, as `python datasets/materialise.py sample` makes it.
Each item is appended to OUT/processors.jsonl as it comes; a second call goes on with those that are
missing. The page is OUT/processors.md, and reports/gpu has a copy. Exits 1 where an item differs.

Needs beside vLLM what gpu_accuracy.py needs. A release without --mm-processor-device is measured
all the same.
"""

from __future__ import annotations

import argparse
import platform
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from gpu import surroundings  # noqa: E402
from gpu.processed import MODELS, UNSERVED, Bench, Line, corpus, read  # noqa: E402
from gpu.processors_page import render, verdict, wrong  # noqa: E402

from mmcalib.errors import MmcalibError  # noqa: E402
from mmcalib.gpus.present import present  # noqa: E402

PAGES = ROOT / "reports" / "gpu"
PAGE = "processors.md"
COMMAND = "python benchmarks/gpu_processors.py --data sample --out DIR"


def main() -> int:
    given = _arguments()
    given.out.mkdir(parents=True, exist_ok=True)
    path = given.out / "processors.jsonl"
    if given.render:
        return _page(path, given.out)
    surroundings.prepare("auto")
    try:
        gpu = platform.processor() or "CPU" if given.device == "cpu" else present().name
    except MmcalibError as error:
        print(f"gpu_processors: {error.message}; --device cpu runs without one", file=sys.stderr)
        return 2
    items = corpus(given.data) if given.data else []
    if not items:
        print("gpu_processors: no files below image/, video/, audio/ of --data", file=sys.stderr)
        return 2
    deadline = time.monotonic() + given.limit_s
    wanted = [m for m in MODELS if not given.only or any(w in m for w in given.only)]
    with tempfile.TemporaryDirectory(prefix="mmcalib-benchmark-") as scratch:
        where = (Path(scratch), given.out / "processors.log", path, deadline)
        bench = Bench(gpu, surroundings.vllm_version(), given.device, given.data, *where)
        for model in wanted:
            began, count = time.monotonic(), 0
            for line in bench.run(model, items):
                count += 1
                if not line.pair and line.refusal != UNSERVED:
                    print(f"{model}, {line.modality} {line.item}: {line.refusal}", flush=True)
            print(f"{model}: {count} lines in {time.monotonic() - began:.0f} s", flush=True)
    left = sum(len(bench.left(model, items)) for model in wanted)
    if left:
        print(f"{left} items are left; the same command goes on")
    return _page(path, given.out)


def _page(path: Path, out: Path) -> int:
    """Write the page; 1 where an item differs or there is none."""
    lines = read(path)
    if not lines:
        print(f"no results in {path}", file=sys.stderr)
        return 1
    text = render(lines, COMMAND)
    (out / PAGE).write_text(text, encoding="utf-8")
    on_gpu: list[Line] = [line for line in lines if line.device != "cpu"]
    if on_gpu:
        PAGES.mkdir(parents=True, exist_ok=True)
        (PAGES / PAGE).write_text(render(on_gpu, COMMAND), encoding="utf-8")
    print(verdict(on_gpu or lines))
    print(f"wrote {out / PAGE}")
    return 1 if wrong(on_gpu or lines) else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--out", type=Path, required=True, help="folder of results, page and log")
    add("--data", type=Path, help="folder of the corpus")
    add("--device", choices=("cuda", "cpu"), default="cuda")
    add("--only", action="append", default=[], metavar="WORD", help="models that hold it; repeat")
    add("--limit-s", type=float, default=470.0, help="begin no item later (470)")
    add("--render", action="store_true", help="only write the page again")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
