"""`rehearse --python` on two real installations of vLLM.

The other one is named by MMCALIB_OTHER_PYTHON, an interpreter or the folder of its environment;
what depends on its release is skipped without it. This one beside itself needs no other.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from mmcalib.domain.release_figure import FigureGroup, FigureValue
from mmcalib.domain.server import REQUEST_BYTES
from mmcalib.result.release_comparison import ComparedFigure, ReleaseComparison
from tests.e2e.command import QWEN, mmcalib
from tests.schemas import fits

pytestmark = [pytest.mark.engine, pytest.mark.slow]

MIB = 1 << 20
QWEN3 = "Qwen/Qwen3-VL-2B-Instruct"
OTHER = "MMCALIB_OTHER_PYTHON"
# The first release tried whose processor hands over bytes, where those before had bfloat16: models
# whose encoder can normalize (`supports_mm_device_do_normalize`, vllm/model_executor/models/).
BYTES_SINCE = {QWEN: (0, 28), QWEN3: (0, 32)}


def compared(cache: Path, model: str, *words: str | Path) -> ReleaseComparison:
    ended = mmcalib(cache, "rehearse", "--model", model, "--gpu", "L4", "--json", *words)
    assert ended.returncode == 0, ended.stderr
    fits("rehearse", ended.stdout)
    return ReleaseComparison.model_validate_json(ended.stdout)


def changed(found: ReleaseComparison, *groups: FigureGroup) -> list[ComparedFigure]:
    return [f for f in found.figures if f.changed and f.group in groups]


def figure(found: ReleaseComparison, group: FigureGroup, name: str) -> ComparedFigure:
    (one,) = [f for f in found.figures if (f.group, f.name) == (group, name)]
    return one


def number(value: FigureValue) -> float:
    assert isinstance(value, int | float)
    return value


def version(release: str) -> tuple[int, int]:
    match = re.match(r"(\d+)\.(\d+)", release)
    assert match is not None
    return int(match[1]), int(match[2])


def test_this_installation_beside_itself(engine_cache: Path, tmp_path: Path) -> None:
    """By way of another interpreter's path, with an option that no release has and one that does
    nothing.
    """
    config = tmp_path / "engine.yaml"
    config.write_text(
        "max-model-len: 32768\nno-such-option: 3\n"
        "mm-processor-kwargs:\n  max_pixels: 602112\n  does_nothing: 3\n"
    )
    found = compared(engine_cache, QWEN, "--config", config, "--python", sys.prefix)
    assert found.before.vllm == found.after.vllm
    assert (found.before.python, found.after.python) == ("", sys.prefix)
    assert [f for f in found.figures if f.changed] == []
    refused = {"no-such-option": "no such option"}
    assert (found.before.refused, found.after.refused) == (refused, refused)
    assert (found.before.problems, found.after.problems) == ([], [])
    assert figure(found, "setting", "no-such-option").after == "refused: no such option"
    assert figure(found, "setting", "max_model_len").after == "32768"
    heeded = figure(found, "effect", "mm_processor_kwargs.max_pixels")
    idle = figure(found, "effect", "mm_processor_kwargs.does_nothing")
    assert (heeded.after, idle.after) == ("changes the items", "no effect on them")
    assert number(figure(found, "item_tokens", "image 4032×3024").after) <= 602_112 / 784
    assert found.after.rehearsal is not None
    assert found.after.rehearsal.starts


@pytest.fixture
def other() -> str:
    if OTHER not in os.environ:
        pytest.skip(f"{OTHER} names no other environment with vLLM")
    return os.environ[OTHER]


@pytest.mark.parametrize("model", [QWEN, QWEN3])
def test_the_other_release_is_compared_and_tells_what_is_known_of_it(
    other: str, model: str, engine_cache: Path
) -> None:
    found = compared(
        engine_cache, model, "--python", other, "--", "--max-model-len", "32768",
    )  # fmt: skip
    here, there = version(found.before.vllm), version(found.after.vllm)
    assert found.after.problems == []
    assert len([f for f in found.figures if f.group == "item_tokens" and f.after]) >= 8

    since = BYTES_SINCE[model]
    pictures = [
        f for f in found.figures if f.group == "item_cache_bytes" and f.name.startswith("image")
    ]
    expected = 2.0 ** ((here >= since) - (there >= since))
    assert [number(f.after) / number(f.before) for f in pictures] == pytest.approx(
        [expected] * len(pictures), rel=0.001
    )

    early, late = (found.before, found.after) if here < there else (found.after, found.before)
    if version(early.vllm) < (0, 33) <= version(late.vllm):
        # cuBLAS makes its handles before the first look at the memory (vllm/v1/worker, 0.33): on an
        # L4 8.1 MiB less, and other tensors moved by less than one.
        peak = figure(found, "memory", "activation peak")
        fell = number(peak.before) - number(peak.after)
        assert 7 * MIB <= (fell if late is found.after else -fell) <= 9 * MIB
        limits = figure(found, "server", REQUEST_BYTES)
        assert {limits.before is None, limits.after is None} == {True, False}
