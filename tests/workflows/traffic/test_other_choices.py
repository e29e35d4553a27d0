"""What else could be decided."""

from __future__ import annotations

from mmcalib.domain.shapes import ImageShape
from mmcalib.workflows.traffic.choices import OtherChoice, other_choices
from tests.workflows.corpora import corpus, decide

SIZES = [ImageShape(side, side) for side in (280, 560, 1120)]


def of_option(found: list[OtherChoice], option: str) -> list[int | float]:
    return [one.value for one in found if one.option == option]


def test_each_is_the_decision_but_for_one_option() -> None:
    decision = decide(corpus(SIZES, [[size] for size in SIZES]))
    tokens = decision.budget.max_num_batched_tokens
    found = other_choices(decision, 10_000)
    assert of_option(found, "max_num_batched_tokens") == [tokens // 2, tokens * 2]
    for one in found:
        if one.option in one.engine_args:
            assert one.engine_args == {**decision.engine_args, one.option: one.value}


def test_sequences_that_no_request_would_fill_are_left_out() -> None:
    decision = decide(corpus(SIZES, [[size] for size in SIZES]))
    seqs = decision.budget.max_num_seqs
    assert of_option(other_choices(decision, seqs // 2), "max_num_seqs") == []
    assert of_option(other_choices(decision, seqs), "max_num_seqs") == [seqs // 2]
    assert of_option(other_choices(decision, seqs + 1), "max_num_seqs") == [seqs // 2, seqs * 2]


def test_caps_are_points_of_the_frontier_on_both_sides() -> None:
    decision = decide(corpus(SIZES, [[size] for size in SIZES]))
    (chosen,) = decision.chosen
    points = {e.point.value: e.point for e in decision.explored}
    values = of_option(other_choices(decision, 3), chosen.knob.name)
    around = [points[value].max_tokens for value in values]
    smaller = [p.max_tokens for p in points.values() if p.max_tokens < chosen.max_tokens]
    larger = [p.max_tokens for p in points.values() if p.max_tokens > chosen.max_tokens]
    assert len(around) == bool(smaller) + bool(larger) > 0
    for tokens in around:
        side, wanted = (
            (smaller, chosen.max_tokens / 2)
            if tokens < chosen.max_tokens
            else (larger, chosen.max_tokens * 2)
        )
        assert abs(tokens - wanted) == min(abs(one - wanted) for one in side)
