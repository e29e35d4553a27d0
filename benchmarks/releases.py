"""Rehearse one model on an L4 with each release of vLLM since 0.11, in an environment of its own.

    python benchmarks/releases.py --environments DIR [--only 0.22] [--keep]

Prints a table. Environments, 9 GB each, are made where they are not there, and removed after use
but for `--keep`. Exits 1 where a release does not rehearse.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from compatibility.environments import environment  # noqa: E402

from mmcalib.engine.host import EngineHost  # noqa: E402
from mmcalib.engine.messages import Rehearse  # noqa: E402
from mmcalib.errors import MmcalibError  # noqa: E402
from mmcalib.models.catalogue import find_model  # noqa: E402
from mmcalib.models.checkpoint import materialise  # noqa: E402
from mmcalib.models.gpus import find_gpu  # noqa: E402
from mmcalib.releases.release import REHEARSED_RELEASES  # noqa: E402
from mmcalib.text import gib  # noqa: E402

MODEL, GPU = "Qwen/Qwen2.5-VL-3B-Instruct", "L4"


def rehearsed(python: Path, folder: Path) -> str:
    """Cells of a row; raises MmcalibError."""
    request = Rehearse({"model": str(folder), "max_model_len": 32_768}, find_gpu(GPU))
    with EngineHost(log=folder / "log", python=str(python), silence_s=600) as host:
        found = host.ask(request, "rehearsing")
    return f"{found.runner} | {gib(found.kv_cache_bytes)} | {found.kv_cache_tokens or 0:,}"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--environments", type=Path, required=True)
    parser.add_argument("--only", action="append", default=[], metavar="RELEASE")
    parser.add_argument("--keep", action="store_true", help="leave the environments")
    given = parser.parse_args()
    geometry = find_model(MODEL)
    assert geometry is not None
    failed = False
    print("| vLLM | runner | KV cache | tokens |\n|---|---|--:|--:|")
    with tempfile.TemporaryDirectory() as scratch:
        folder = materialise(geometry, Path(scratch) / "model")
        for release in given.only or REHEARSED_RELEASES:
            try:
                row = rehearsed(environment(release, given.environments), folder)
            except (MmcalibError, subprocess.CalledProcessError) as error:
                failed, row = True, f"{error} | – | –"
            print(f"| {release} | {row} |", flush=True)
            if not given.keep:
                shutil.rmtree(given.environments / release, ignore_errors=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
