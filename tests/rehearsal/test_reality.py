"""The imaginary GPU against real tensors: the same modules, run on the CPU under torch's events."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.engine, pytest.mark.slow]

PROGRAM = Path(__file__).resolve().parents[2] / "benchmarks" / "rehearsal_reality.py"
TOLERANCE = 0.01
# CUDA's allocator leaves up to 1 MiB unsplit, depending on free blocks, which differ on the CPU.
UNSPLIT_BYTES = 2 << 20

Compared = dict[tuple[str, str, tuple[int, ...]], tuple[dict[str, int], dict[str, int]]]


@pytest.fixture(scope="module")
def compared() -> Compared:
    """(real, imagined) peaks by part, attention and size."""
    if importlib.util.find_spec("vllm") is None:
        pytest.skip("needs vLLM: make setup")
    done = subprocess.run(
        [sys.executable, str(PROGRAM), "--json"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = {}
    for one in map(json.loads, done.stdout.splitlines()):
        case: dict[str, Any] = one["case"]
        key = (case["part"], case["attention"], tuple(case["size"]))
        found[key] = (one["real"], one["imagined"])
    return found


def off(found: int, truth: int) -> float:
    return abs(found - truth) / truth


@pytest.mark.parametrize("figure", ["weights_bytes", "run_bytes"])
def test_requested_bytes_are_within_one_percent_of_the_real_ones(
    compared: Compared, figure: str
) -> None:
    missed = {
        case: (imagined[figure], real[figure])
        for case, (real, imagined) in compared.items()
        if off(imagined[figure], real[figure]) > TOLERANCE
    }
    assert missed == {}


def test_every_part_ran_with_every_attention(compared: Compared) -> None:
    parts = {(part, attention) for part, attention, _ in compared}
    assert parts == {(p, a) for p in ("vision", "language", "audio") for a in ("sdpa", "eager")}
    assert all(real["run_bytes"] > 10 << 20 for real, _ in compared.values())


def test_the_replayed_allocator_makes_the_same_blocks_of_the_real_requests(
    compared: Compared,
) -> None:
    missed = {
        case: (imagined["run_block_bytes"], real["run_block_bytes"])
        for case, (real, imagined) in compared.items()
        if abs(imagined["run_block_bytes"] - real["run_block_bytes"]) > UNSPLIT_BYTES
    }
    assert missed == {}
