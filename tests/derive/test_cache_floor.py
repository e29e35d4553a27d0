"""What one admissible request may bring: from vLLM's dummies, not from the corpus alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from mmcalib.derive.costs import CostTable
from mmcalib.derive.item_cost import ItemCost
from mmcalib.derive.processor_cache import cache_floor, largest_item_bytes, parts, within_context
from mmcalib.domain.knobs import DEFAULT
from mmcalib.domain.memory import Budget, Dummy
from mmcalib.domain.shapes import ImageShape, Modality, Shape, VideoShape
from tests.derive.costed import table_of

TOKEN_BYTES = 4704
LOGO, PAGE = ImageShape(100, 100), ImageShape(1000, 1000)
CLIP = VideoShape(32, 8.0, 4.0, 280, 280)


def costs(*found: tuple[Shape, int, int]) -> CostTable:
    return table_of(
        DEFAULT,
        {s: ItemCost(s, 1, str(s), n, n, nbytes, 0.0, (), "real") for s, n, nbytes in found},
    )


def budget(most: Mapping[Modality, int]) -> Budget:
    """vLLM's own largest items; its dummies have as many tokens."""
    dummies = {m: Dummy(n, n * TOKEN_BYTES, {}) for m, n in most.items()}
    return Budget(20_000, 20_000, dict(most), {}, {}, None, 0, dummies, 32_768, 8192, 8)


def test_the_largest_item_is_the_one_that_is_admitted_not_the_corpus() -> None:
    """Finding §1 of the server conformance work: the floor was the corpus' largest request."""
    table = costs((LOGO, 16, 16 * TOKEN_BYTES), (PAGE, 1276, 1276 * TOKEN_BYTES))
    found = cache_floor({"image": 3, "audio": 0}, table, budget({"image": 16_384}), 20_000)
    assert found.items == {"image": (3, 16_384 * TOKEN_BYTES)}
    assert found.nbytes == 3 * 16_384 * TOKEN_BYTES
    assert list(parts(found)) == ["3 × image of 77.1 MB"]


def test_an_item_of_the_corpus_that_takes_more_than_the_dummy_counts() -> None:
    """Processors that pad: a sliver of few tokens, and many bytes."""
    table = costs((LOGO, 16, 100_000_000))
    assert largest_item_bytes("image", table, budget({"image": 16_384}), 20_000) == 100_000_000


def test_of_a_video_whatever_the_encoder_cache_admits() -> None:
    """Qwen2-VL's dummy has 14 frames, and its loader keeps more."""
    table, plain = costs((CLIP, 1600, 1600 * TOKEN_BYTES)), budget({"video": 700})
    assert largest_item_bytes("video", table, plain, 20_000) == 20_000 * TOKEN_BYTES
    padded = costs((CLIP, 1600, 1600 * 2 * TOKEN_BYTES))
    assert largest_item_bytes("video", padded, plain, 20_000) == 40_000 * TOKEN_BYTES


def test_a_dummy_that_the_size_hints_shrank_is_scaled_to_the_largest_item() -> None:
    plain = replace(budget({"image": 16_384}), dummies={"image": Dummy(324, 324 * TOKEN_BYTES, {})})
    assert largest_item_bytes("image", costs(), plain, 20_000) == 16_384 * TOKEN_BYTES


def test_without_dummies_the_corpus_is_all_that_is_known() -> None:
    plain = replace(budget({}), dummies={})
    assert largest_item_bytes("image", costs((LOGO, 16, 500)), plain, 20_000) == 500
    assert largest_item_bytes("image", costs(), plain, 20_000) == 0


def test_a_limit_of_999_is_no_more_than_what_begins_within_the_context() -> None:
    """32,768 tokens: two largest images fill it, and nothing begins behind them."""
    plain = budget({"image": 16_384, "video": 700})
    unsaid: dict[Modality, int] = {"image": 999, "video": 1, "audio": 999}
    found = within_context(unsaid, costs(), plain, 20_000)
    assert found == {"image": 2, "video": 0, "audio": 999}
    longer = replace(plain, max_model_len=32_769)
    assert within_context(unsaid, costs(), longer, 20_000) == {"image": 3, "video": 0, "audio": 999}


def test_what_takes_most_bytes_for_its_tokens_fills_the_context_first() -> None:
    plain = budget({"image": 16_384, "video": 700})
    heavy = costs((CLIP, 1600, 1600 * 2 * TOKEN_BYTES))
    found = within_context({"image": 4, "video": 1}, heavy, plain, 20_000)
    assert found == {"image": 1, "video": 1}
