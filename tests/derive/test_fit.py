from __future__ import annotations

from mmcalib.census.shapes import AudioShape, ImageShape
from mmcalib.derive.checks import Check, verdict
from mmcalib.derive.costs import CostTable, ItemCost
from mmcalib.derive.fit import PromptTokens, fit, prompt_tokens
from mmcalib.engine.setting import DEFAULT

A, B = ImageShape(1, 1), ImageShape(2, 1)


def test_a_prompt_costs_what_its_items_cost() -> None:
    found = prompt_tokens("r:1", 3, [A, A, B], {A: 10, B: 5})
    assert found == PromptTokens("r:1", 3, 25)
    assert prompt_tokens("r:1", 1, [], {}) == PromptTokens("r:1", 1, 0)


def test_a_prompt_with_a_refused_item_is_not_counted() -> None:
    assert prompt_tokens("r:1", 1, [A, B], {A: 10}) is None


def test_the_longest_prompt_and_all_that_are_too_long() -> None:
    prompts = [
        PromptTokens("r:1", 5, 900),
        PromptTokens("r:2", 2, 901),
        PromptTokens("r:3", 3, 950),
    ]
    found = fit(prompts, reserve_tokens=100, max_model_len=1000)
    assert found is not None
    assert (found.longest.origin, found.needed_tokens) == ("r:3", 1050)
    assert (found.prompts_too_long, found.passes) == (5, False)


def test_a_prompt_may_fill_the_context() -> None:
    found = fit([PromptTokens("r:1", 1, 900)], reserve_tokens=100, max_model_len=1000)
    assert found is not None
    assert found.passes


def test_no_prompts_no_fit() -> None:
    assert fit([], 100, 1000) is None


def test_one_failed_check_is_a_no() -> None:
    checks = [Check(status, status, "") for status in ("pass", "warn", "skip")]
    assert verdict(checks) == "pass"
    assert verdict([]) == "pass"
    assert verdict([*checks, Check("x", "fail", "")]) == "fail"


def test_the_heaviest_takes_most_of_the_encoder_cache_not_of_the_prompt() -> None:
    def cost(shape, exemplar: str, tokens: int, embeds: int) -> ItemCost:
        return ItemCost(shape, 1, exemplar, tokens, embeds, 0, 0.0, (), "real")

    costs = [
        cost(A, "a", 300, 100),
        cost(B, "b", 200, 200),
        cost(ImageShape(3, 1), "c", 200, 200),
        cost(AudioShape(1, 1), "d", 9, 9),
    ]
    table = CostTable(DEFAULT, {c.shape: c for c in costs})
    heaviest = table.heaviest("image")
    assert heaviest is not None
    assert heaviest.exemplar == "c"
    assert table.heaviest("video") is None
    assert table.modalities() == ("image", "audio")
