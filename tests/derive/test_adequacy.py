from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmcalib.derive.limits import adequacy
from mmcalib.domain.memory import Budget, Clip, Dummy
from mmcalib.domain.shapes import Modality


def budget(
    encoder_tokens: int,
    most: dict[Modality, int],
    *,
    profiled: Modality | None = "image",
    items: int = 1,
    dummy: int | None = None,
    seqs: int = 256,
    clip: Clip | None = None,
) -> Budget:
    return Budget(
        encoder_compute_budget=encoder_tokens,
        encoder_cache_size=encoder_tokens,
        max_tokens_per_item=most,
        max_items_per_prompt=dict.fromkeys(most, 1),
        max_items_per_batch=dict.fromkeys(most, items),
        profiled_modality=profiled,
        profiled_items=items,
        dummies={profiled: Dummy(dummy, 0, {})} if profiled and dummy else {},
        max_model_len=128_000,
        max_num_batched_tokens=8192,
        max_num_seqs=seqs,
        largest_clip=clip,
    )


def test_the_size_hint_trap_fails() -> None:
    """512×512 shrinks the dummy to 324 tokens; a step may still encode an item of 16,384."""
    found = adequacy(budget(16384, {"image": 16384}, dummy=324), {"image": 1})
    assert (found.profiled_tokens, found.worst_step_tokens) == (324, 16384)
    assert found.ratio == pytest.approx(0.0198, abs=1e-4)
    assert not found.passes


def test_a_smaller_item_shrinks_dummy_and_budget_together() -> None:
    """max_pixels 1003520: 8192 // 1280 = 6 items, 7680 of 8192 tokens."""
    found = adequacy(budget(8192, {"image": 1280}, items=6, dummy=1280), {"image": 1})
    assert (found.profiled_tokens, found.worst_step_tokens) == (7680, 8192)
    assert found.ratio == 0.9375
    assert found.passes


def test_whole_items_leave_nothing_unprofiled() -> None:
    found = adequacy(budget(8960, {"image": 1280}, items=7, dummy=1280), {"image": 1})
    assert found.ratio == 1.0


def test_few_sequences_cannot_fill_the_budget() -> None:
    found = adequacy(budget(8192, {"image": 1280}, items=2, dummy=1280, seqs=2), {"image": 1})
    assert (found.profiled_tokens, found.worst_step_tokens) == (2560, 2560)
    more = adequacy(budget(8192, {"image": 1280}, items=2, dummy=1280, seqs=2), {"image": 3})
    assert (more.worst_step_tokens, more.passes) == (7680, False)


def test_a_video_is_no_larger_than_loader_and_processor_make_it() -> None:
    """Finding §7 of the server conformance work."""
    clip = Clip(384, 768, 16, 16)
    found = adequacy(
        budget(8192, {"video": 196}, profiled="video", dummy=196, items=2, seqs=2, clip=clip),
        {"video": 1},
    )
    assert (found.profiled_tokens, found.worst_step_tokens) == (392, 768)
    assert found.of == " (videos of up to 768 frames of 16×16)"


def test_a_video_that_nothing_bounds_may_fill_the_whole_budget() -> None:
    """No processor option bounds its frames, so its own maximum does not either."""
    most: dict[Modality, int] = {"image": 1280, "video": 1000}
    found = adequacy(budget(8192, most, items=1, dummy=1280, seqs=1), {"image": 1, "video": 1})
    assert found.worst_step_tokens == 8192
    assert not found.passes


def test_a_modality_that_is_switched_off_adds_nothing() -> None:
    found = adequacy(
        budget(8192, {"image": 1280}, items=1, dummy=1280, seqs=1), {"image": 1, "video": 0}
    )
    assert found.worst_step_tokens == 1280


def test_modalities_add_up_in_one_step() -> None:
    most: dict[Modality, int] = {"image": 1000, "audio": 500}
    found = adequacy(budget(8192, most, items=1, dummy=1000, seqs=1), {"image": 2, "audio": 1})
    assert found.worst_step_tokens == 2500


def test_without_a_dummy_the_items_maximum_counts() -> None:
    found = adequacy(budget(8192, {"image": 1280}, items=6), {"image": 1})
    assert found.profiled_tokens == 7680


def test_nothing_to_encode_is_adequate() -> None:
    found = adequacy(budget(0, {}, profiled=None, items=0), {"image": 0})
    assert (found.profiled_tokens, found.worst_step_tokens, found.ratio) == (0, 0, 1.0)
    assert found.passes


@pytest.mark.parametrize(("dummy", "passes"), [(900, True), (899, False)])
def test_nine_tenths_are_enough(dummy: int, passes: bool) -> None:
    found = adequacy(budget(1000, {"image": 1000}, dummy=dummy), {"image": 1})
    assert found.passes is passes


@given(st.integers(1, 20_000), st.integers(1, 20_000), st.integers(1, 8), st.integers(1, 300))
def test_a_profile_of_whole_budgets_passes_where_a_multiple_was_chosen(
    item: int, wanted: int, per_prompt: int, seqs: int
) -> None:
    """What `max_num_batched_tokens` is rounded for: the profile then leaves nothing out."""
    tokens = -(-wanted // item) * item
    items = max(1, min(tokens // item, seqs * per_prompt))
    found = adequacy(
        budget(tokens, {"image": item}, items=items, dummy=item, seqs=seqs), {"image": per_prompt}
    )
    assert found.ratio == 1.0
