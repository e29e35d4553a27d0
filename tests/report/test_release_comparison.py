"""Two releases of vLLM on the terminal and as a document."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from mmcalib.derive.upgrade.figures import release_figures
from mmcalib.domain.release_view import ReleaseView
from mmcalib.domain.server import REQUEST_BYTES, Server
from mmcalib.report.release_comparison import release_comparison
from mmcalib.result.rehearsal import Rehearsal
from mmcalib.result.release_comparison import ComparedFigure, ComparedRelease, ReleaseComparison
from tests.derive.test_release_figures import OPENED, SERVE, VIEW, item
from tests.report.golden import check_golden
from tests.report.test_rehearsal_report import one
from tests.schemas import fits
from tests.workflows.rehearsals import GIB, rehearsed


def release(view: ReleaseView, rehearsal: Rehearsal | None) -> ComparedRelease:
    return ComparedRelease(
        vllm=view.vllm,
        python=view.python,
        versions={},
        refused={} if view.serve is None else dict(view.serve.refused),
        problems=list(view.problems),
        rehearsal=rehearsal,
    )


def compared(
    after: ReleaseView, rehearsals: tuple[Rehearsal | None, Rehearsal | None]
) -> ReleaseComparison:
    return ReleaseComparison(
        model="Qwen/Qwen2.5-VL-3B-Instruct",
        source="bundled",
        config="",
        flags=[],
        gpu="L4",
        mmcalib="0.1.0",
        before=release(VIEW, rehearsals[0]),
        after=release(after, rehearsals[1]),
        figures=[ComparedFigure.showing(figure) for figure in release_figures(VIEW, after)],
    )


def shown(found: ReleaseComparison) -> str:
    page = io.StringIO()
    release_comparison(found, Console(file=page, width=100, color_system=None, highlight=False))
    return "\n".join(line.rstrip() for line in page.getvalue().splitlines()) + "\n"


@pytest.fixture
def later() -> ReleaseView:
    server = Server(limits={"A": 1, REQUEST_BYTES: 715_827_880}, decodes={"h264": True})
    return replace(
        VIEW,
        vllm="0.33.0",
        python="/envs/later",
        items=(item(nbytes=459_822),),
        rehearsed=rehearsed(activation_peak_bytes=2 * GIB - 8_519_680),
        opened=replace(OPENED, server=server),
        serve=replace(SERVE, defaults={**SERVE.defaults, "seed": 1}),
        heeded={"mm_processor_kwargs.max_pixels": False},
    )


def test_golden(later: ReleaseView, tmp_path: Path) -> None:
    found = compared(later, (one(tmp_path), one(tmp_path)))
    check_golden("release_comparison.txt", shown(found))


def test_the_document_fits_its_schema_and_survives_json(later: ReleaseView, tmp_path: Path) -> None:
    found = compared(later, (one(tmp_path), None))
    fits("rehearse", found.model_dump_json())
    assert ReleaseComparison.model_validate_json(found.model_dump_json()) == found


def test_what_is_refused_there_and_what_would_not_start_is_the_last_word(
    later: ReleaseView, tmp_path: Path
) -> None:
    assert later.serve is not None
    refusing = replace(later, serve=replace(later.serve, refused={"novel": "no such option"}))
    page = shown(compared(refusing, (one(tmp_path), None)))
    assert page.rstrip().endswith("0.33.0 (/envs/later) refuses novel")
    short = one(tmp_path, kv_cache_tokens=None, problem="No memory left")
    page = shown(compared(later, (one(tmp_path), short)))
    assert "0.33.0 (/envs/later) would not: No memory left" in page


def test_a_problem_is_shown_beside_what_could_be_compared(later: ReleaseView) -> None:
    broken = replace(later, rehearsed=None, opened=None, items=(), problems=("moved\x1b[31m",))
    page = shown(compared(broken, (None, None)))
    assert "!! 0.33.0 (/envs/later): moved\\x1b[31m" in page
    assert "gone" not in page, "what could not be had is not said to be gone"
    (row,) = [line for line in page.splitlines() if line.startswith("KV cache, tokens")]
    assert row.split()[-2:] == ["305,832", "—"]
