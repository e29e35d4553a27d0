"""Models and GPUs side by side: the rows of calibrations, and their table."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from mmcalib.admission.calibration import Calibration
from mmcalib.domain.model import Retention
from mmcalib.errors import VerdictError
from mmcalib.report.terminal import print_comparison
from mmcalib.results.calibration import ComparedRun, Comparison
from tests.report.example import calibration

FIGURES = {"kv_cache_tokens": 291_504, "kv_cache_bytes": 10_746_336_502, "max_concurrency": 8.9}


def rehearsed() -> Calibration:
    """The example as it would be with a GPU."""
    found = calibration()
    after = found.memory.calibrated.model_copy(update={**FIGURES, "label": "rehearsed"})
    memory = found.memory.model_copy(update={"calibrated": after})
    return found.model_copy(update={"memory": memory})


def row(**changed: object) -> ComparedRun:
    return ComparedRun.of(rehearsed().model_copy(update=changed), "L4", "m-L4")


def test_a_row_has_the_figures_of_its_calibration() -> None:
    found = row()
    assert (found.model, found.gpu, found.folder) == (calibration().model.id, "L4", "m-L4")
    assert (found.verdict, found.starts, found.problem) == ("pass", True, "")
    assert {name: getattr(found, name) for name in FIGURES} == FIGURES
    assert found.max_num_batched_tokens == 2538


def test_without_a_gpu_nothing_is_said_of_memory() -> None:
    found = ComparedRun.of(rehearsed(), None, "m")
    assert (found.starts, found.kv_cache_tokens, found.max_concurrency) == (None, None, None)
    by_formula = ComparedRun.of(calibration(), "L4", "m-L4")
    assert by_formula.starts is None, "it was not rehearsed"


def test_detail_is_the_mean_over_all_items() -> None:
    corpus = calibration().corpus
    image, video = corpus.modalities["image"], corpus.modalities["video"]
    halved = video.model_copy(update={"kept": Retention(video.items, 0.5, 0.1, "v")})
    kept = corpus.model_copy(update={"modalities": {"image": image, "video": halved}})
    share = (image.items + video.items / 2) / (image.items + video.items)
    assert row(corpus=kept).detail_kept == pytest.approx(share)


def test_a_failed_check_and_an_early_end_say_why() -> None:
    no = calibration().checks[1].model_copy(update={"status": "fail", "remedy": "--sample 9"})
    failed = row(verdict="fail", checks=[no])
    assert (failed.problem, failed.remedy) == (f"{no.name}: {no.detail}", "--sample 9")
    error = VerdictError("does not fit", hint="a larger --gpu")
    ended = ComparedRun.from_error(error, "a/b", "T4", "b-T4", starts=False)
    assert (ended.verdict, ended.starts, ended.remedy) == ("fail", False, "a larger --gpu")


@pytest.mark.parametrize("width", [80, 120])
def test_the_table_fits_and_names_who_fails(width: int) -> None:
    error = VerdictError("does not fit", hint="a larger --gpu")
    runs = [row(), ComparedRun.from_error(error, "a/b", "T4", "b-T4", starts=False)]
    page = io.StringIO()
    print_comparison(Comparison(mmcalib="1", runs=runs), Console(file=page, width=width))
    head, first, second, *rest = page.getvalue().strip().splitlines()
    assert max(map(len, (head, first, second))) <= width
    assert head.split() == [
        *("model", "GPU", "starts", "KV", "tokens", "KV", "cache", "at", "once", "detail", "batch")
    ]
    assert first.split()[1:3] == ["L4", "yes"]
    assert first.split()[-1] == "2,538"
    assert second.split() == ["b", "T4", "no", "—", "—", "—", "—", "—"]
    assert rest[-2:] == ["b-T4 failed: does not fit", "  try: a larger --gpu"]
