"""The parts of the GPU benchmark that need none: which case is next, what is kept, what is said."""

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from gpu.cases import cases, next_case, wanted
from gpu.report import CPU_MARK, render
from gpu.results import Result, Results
from gpu.scores import disagreed, scores

ALL = list(cases())
GIB = 1 << 30


def result(key: str = "3b:default", **changes: Any) -> Result:
    fields: dict[str, Any] = {
        "key": key,
        "model": "m",
        "kind": "default",
        "device": "cuda",
        "gpu": "NVIDIA H200",
        "vllm": "0.26.0",
        "seconds": 30.0,
        "engine_args": {},
        "components": [*pool(102, 100), part("encoder peak", 95, 100)],
        "rehearsed": {"kv_cache_tokens": 5},
        "started": {"gpu": {"total_bytes": 140 * GIB}},
    }
    return Result(**{**fields, **changes})


def pool(predicted: float, measured: float) -> list[dict[str, Any]]:
    return [part("KV pool", predicted, measured), part("KV pool, tokens", predicted, measured)]


def part(name: str, predicted: float, measured: float) -> dict[str, Any]:
    return {"name": name, "predicted": round(predicted * GIB), "measured": round(measured * GIB)}


def test_no_two_cases_have_one_key_and_each_model_has_three() -> None:
    assert len({case.key for case in ALL}) == len(ALL)
    kinds = [case.kind for case in ALL if "gemma" in case.key]
    assert kinds == ["default", "hint-only", "calibrated"]
    assert {case.kind for case in wanted(ALL, ["hint-only"])} == {"hint-only"}


def test_a_smaller_card_takes_its_share_and_has_keys_of_its_own() -> None:
    small = list(cases(card_gib=16, utilization=0.1))
    assert {case.engine_args["gpu_memory_utilization"] for case in small} == {0.1}
    assert {case.key for case in small}.isdisjoint(case.key for case in ALL)


def test_the_next_case_is_the_first_that_ends_in_time() -> None:
    assert next_case(ALL, (), 1000) is ALL[0]
    # Bursts and graphs take longer than is left; a plain start does not.
    found = next_case(ALL, {ALL[0].key}, 70)
    assert found is not None
    assert (found.burst, found.graphs) == (None, False)
    assert next_case(ALL, (), 50) is None
    assert next_case(ALL, (), 50, took_s=[20.0, 30.0]) is ALL[0]
    assert next_case(ALL, {case.key for case in ALL}, 1000) is None


def test_a_second_call_goes_on_where_the_first_was_stopped(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    Results(path, "NVIDIA H200", "0.26.0").add(result("a"))
    with path.open("ab") as file:
        file.write(b'{"key": "cut of')
    again = Results(path, "NVIDIA H200", "0.26.0")
    again.add(result("b", failed={"start": "no room"}))
    assert [one.key for one in again] == ["a", "b"]
    assert again.done() == {"a", "b"}
    assert again.done(retry=True) == {"a"}
    again.add(result("b"))
    assert again.done(retry=True) == {"a", "b"}
    assert Results(path, "NVIDIA H200", "0.32.0").done() == set()


@pytest.mark.parametrize(
    ("pools", "verdicts"),
    [
        ([(100, 100), (99, 100)], ["pass", "pass", "pass"]),
        ([(100.4, 100)], ["pass", "fail", "pass"]),
        ([(98, 100)], ["fail", "pass", "pass"]),
    ],
)
def test_scores_are_of_the_pool_both_ways_and_of_the_encoder(pools, verdicts: list[str]) -> None:
    encoder = part("encoder peak", 95, 100)
    found = scores([result(components=[*pool(*both), encoder]) for both in pools])
    assert [score.verdict for score in found] == verdicts
    assert [score.verdict for score in scores([])] == ["no case"] * 3


def test_a_start_that_was_not_predicted_is_named() -> None:
    (said,) = disagreed([result(), result("x", started=None, failed={"start": "no KV cache"})])
    assert said == "x: rehearsed, it would start; it did not: no KV cache"


def test_the_page_has_both_figures_and_the_burst_s_own_error() -> None:
    burst = {"items": 12, "survived": False}
    page = render(
        [result(burst=burst, failed={"burst": "CUDA out of memory | tried 2 GiB"})],
        "NVIDIA H200", "0.26.0", {"3b:default": 103 * GIB},
    )  # fmt: skip
    assert "| 3b:default | 103.00 | 102.00 | 100.00 | +2.00 | +1.43% |" in page
    assert "KV pool, most promised too much, GiB: 2.00 of at most 0.30, 1 cases: fail" in page
    assert "| 3b:default | – | 95.000 / 100.000 |" in page
    assert "CUDA out of memory \\| tried 2 GiB" in page
    assert CPU_MARK not in page
    assert CPU_MARK in render([result(device="cpu")], "L4", "0.32.0", {"3b:default": GIB})
