"""When a figure of traffic counts as the same, and what a window of counters holds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mmcalib.derive.drift.calibrated import CalibratedTraffic
from mmcalib.derive.drift.figure import alike, items_per_request, no_more, shifted
from mmcalib.derive.drift.metrics import Histogram, ServerCounts, metrics_drift
from mmcalib.derive.percentiles import Spread

KNOWN = CalibratedTraffic(
    spreads={"image": Spread(200, 2, 100, 100, 300, 300, 300, "a.jpg")},
    counts={"image": 2, "video": 0},
    prompts=100,
    text_reserve_tokens=400,
    max_model_len=8192,
    media_tokens=(400.0, 400.0),
    hit_rate=0.5,
    preemptions=0.0,
)
STEPS = (100.0, 200.0, 500.0, 1000.0, 2000.0, float("inf"))


def histogram(*sizes: float) -> Histogram:
    return Histogram({end: sum(size <= end for size in sizes) for end in STEPS}, sum(sizes))


def counts(*sizes: float, **other: object) -> ServerCounts:
    made = ServerCounts(
        prompts=histogram(*sizes),
        answers=histogram(*[10.0] * len(sizes)),
        queries=2.0 * len(sizes),
        hits=float(len(sizes)),
        preemptions=0.0,
        finished={"stop": float(len(sizes)), "length": 0.0},
        http={"2xx": float(len(sizes))},
        kv_usage=0.1,
    )
    return replace(made, **other)  # type: ignore[arg-type]


def no(found: ServerCounts, known: CalibratedTraffic = KNOWN) -> set[str]:
    return {figure.name for figure in shifted(metrics_drift(found, known, 0.01))}


@pytest.mark.parametrize(
    ("today", "seen", "likeness"),
    [
        (100.0, 30, "same"),
        (150.0, 30, "same"),
        (151.0, 30, "shifted"),
        (67.0, 30, "same"),
        (66.0, 30, "shifted"),
        (500.0, 29, "unknown"),
        (None, 90, "unknown"),
    ],
)
def test_half_as_much_again_is_another_traffic(
    today: float | None, seen: int, likeness: str
) -> None:
    assert alike("x", "tokens", today, 100.0, seen, "").likeness == likeness


def test_what_was_not_calibrated_is_not_judged() -> None:
    assert alike("x", "tokens", 5.0, None, 90, "").likeness == "unknown"
    assert no_more("x", "share", None, 0.01, "").likeness == "unknown"


@pytest.mark.parametrize(
    ("items", "likeness"), [(0, "same"), (7, "same"), (15, "same"), (16, "shifted")]
)
def test_a_few_items_more_or_less_are_chance(items: int, likeness: str) -> None:
    # 7.5 are expected, and chance takes 8.2 of them or brings as many.
    assert items_per_request("x", items, 30, 0.25, "").likeness == likeness


def test_the_same_load_is_the_same() -> None:
    assert no(counts(*[500.0] * 60)) == set()


@pytest.mark.parametrize(
    ("found", "names"),
    [
        (counts(*[500.0] * 60, http={"2xx": 58.0, "4xx": 2.0}), {"refused"}),
        (counts(*[500.0] * 60, queries=240.0), {"items per request"}),
        (counts(*[500.0] * 60, preemptions=5.0), {"preemptions per request"}),
        (counts(*[150.0] * 60), {"prompt tokens"}),
        (counts(*[500.0] * 58, 1999.0, 1999.0), set()),
        (counts(*[500.0] * 58, 2001.0, 2001.0), {"larger prompts"}),
    ],
)
def test_each_figure_shifts_by_itself(found: ServerCounts, names: set[str]) -> None:
    """Of the largest prompt, 1,000 tokens, the histogram tells those above 2,000 for sure."""
    known = replace(KNOWN, text_reserve_tokens=401)
    assert known.largest_prompt_tokens == 1001
    assert no(found, known) == names


def test_no_cache_tells_no_items() -> None:
    figures = {f.name: f for f in metrics_drift(counts(*[500.0] * 60, queries=None), KNOWN, 0.01)}
    assert figures["items per request"].likeness == "unknown"
    assert figures["multimodal cache hits"].today is None


def test_without_requests_in_the_corpus_means_are_unknown() -> None:
    known = replace(KNOWN, prompts=0, media_tokens=None, preemptions=None)
    found = {f.name: f.likeness for f in metrics_drift(counts(*[10.0] * 60), known, 0.01)}
    assert found["prompt tokens"] == found["items per request"] == "unknown"
    assert found["preemptions per request"] == "shown"


def test_a_window_is_what_was_added() -> None:
    before, after = counts(*[500.0] * 60), counts(*[500.0] * 60, *[2001.0] * 40)
    window = after.since(before)
    assert window is not None
    assert (window.prompts.count, window.prompts.mean) == (40, 2001.0)
    assert window.http == {"2xx": 40.0}
    assert "larger prompts" in no(window)
    assert before.since(after) is None
