"""A rehearsal and served requests on the terminal."""

from functools import partial
from pathlib import Path

import pytest

from mmcalib.models import gpus
from mmcalib.models.catalogue import find_model
from mmcalib.models.checkpoint import materialise
from mmcalib.models.resolve import resolve
from mmcalib.prediction.rehearse import budget_figures, memory_figures, rehearsal_document
from mmcalib.report.rows import Column, memory_rows, traffic_sentence
from mmcalib.report.terminal_memory import print_rehearsals, print_traffic
from mmcalib.results.memory import Memory, Rehearsal, TrafficFigures
from tests.builders import some
from tests.report.golden import check_golden, printed
from tests.report.serving import MIB, figures
from tests.workflows.rehearsals import BUDGET, GIB, LATE, rehearsed


def one(folder: Path, config: str = "", **changes: object) -> Rehearsal:
    geometry = some(find_model("Qwen/Qwen2.5-VL-3B-Instruct"))
    model = resolve(str(materialise(geometry, folder / "3b")), cache_dir=folder)
    path = Path(config) if config else None
    found = rehearsal_document(rehearsed(**changes), model, gpus.find_gpu("L4"), path)
    return found.model_copy(update={"model": "Qwen/Qwen2.5-VL-3B-Instruct"})


def shown(*found: Rehearsal, verbose: bool = True) -> str:
    command = "mmcalib plan --gpu L4"
    return printed(lambda console: print_rehearsals(found, console, command, verbose=verbose))


def test_golden(tmp_path: Path) -> None:
    check_golden("rehearsal.txt", shown(one(tmp_path)))


def test_two_side_by_side_and_one_that_would_not_start(tmp_path: Path) -> None:
    short = {"kv_cache_bytes": -GIB, "kv_cache_tokens": None, "max_concurrency": None}
    second = one(tmp_path, "b.yaml", **short, problem="No room. Try more.")
    page = shown(one(tmp_path, "a[/]a.yaml"), second)
    assert "b.yaml: vLLM would not start: No room\n" in page
    (row,) = [line for line in page.splitlines() if line.startswith("KV cache  ")]
    assert row.index("10.50 GiB") < row.index("−1.00 GiB")
    assert page.count("Largest at the peak of") == 2
    assert page.count("→ mmcalib plan --gpu L4") == 1


def test_figures_stand_in_the_row_of_their_name(tmp_path: Path) -> None:
    late = one(tmp_path, "late.yaml", division=LATE, spare_bytes=GIB // 4, phases=())
    page = shown(one(tmp_path, "a.yaml"), late, verbose=False)
    lines = {line.partition("  ")[0]: line.split() for line in page.splitlines()}
    assert lines["kept free"][2:6] == ["—", "−", "0.25", "GiB"]
    assert lines["KV cache"].count("10.50") == 2


def test_the_verdict_comes_first_and_assumptions_are_for_verbose(tmp_path: Path) -> None:
    page = shown(one(tmp_path), verbose=False)
    assert page.index("305,832 tokens") < page.index("requested")
    assert "Assumptions" not in page
    assert len(page.splitlines()) <= 21


def test_it_survives_json(tmp_path: Path) -> None:
    found = one(tmp_path)
    assert Rehearsal.model_validate_json(found.model_dump_json()) == found
    assert {"memory", "budget", "assumptions"} <= set(found.model_dump())


def test_golden_of_served_requests() -> None:
    check_golden("traffic.txt", printed(partial(print_traffic, figures(), "L4"), width=90))


@pytest.mark.parametrize(
    ("peak_bytes", "outside_bytes", "status", "said"),
    [
        (GIB, 0, "pass", "0.00 GiB stay unused"),
        (GIB + MIB, MIB, "pass", "within vLLM's own slack"),
        (GIB + MIB, 0, "fail", "out of memory"),
        (3 * GIB // 2, GIB, "warn", "0.50 GiB more than the startup reserve and fits"),
        (2 * GIB, GIB // 4, "fail", "out of memory"),
    ],
)
def test_the_verdict(peak_bytes: int, outside_bytes: int, status: str, said: str) -> None:
    found = figures(peak_bytes, outside_bytes)
    assert found.status == status
    assert said in traffic_sentence(found)


def test_served_requests_survive_json() -> None:
    found = figures()
    assert TrafficFigures.model_validate_json(found.model_dump_json()) == found
    assert [point.step for point in found.timeline] == [0, 1]
    assert (found.preemptions, found.encoder_waits, found.served) == (1, 1, 2)
    highest = found.highest.peak_bytes if found.highest else None
    assert (highest, found.margin_bytes) == (700 << 20, 324 << 20)


def test_figures_that_only_the_defaults_have_keep_their_labels_and_gpu() -> None:
    """vLLM rejects the file, so nothing of it was rehearsed."""
    budget, default = budget_figures(BUDGET), memory_figures(rehearsed(), gpus.find_gpu("L4"))
    found = list(memory_rows([Column("", budget, default), Column("", budget, Memory())]))
    assert [(row[0], row[2], row[3]) for row in found] == [
        *((n, "—", "rehearsed") for n in ("requested", "weights", "buffers", "activation peak")),
        *((name, "—", "assumed") for name in ("outside torch", "CUDA graphs")),
        ("KV cache on L4", "—", "computed"),
        ("KV cache on L4, tokens", "—", "computed"),
        ("full-length requests at once", "—", "computed"),
    ]
