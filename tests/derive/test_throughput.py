from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmcalib.derive.cost_columns import CostColumns
from mmcalib.derive.item_cost import Basis, ItemCost
from mmcalib.derive.throughput import Batch, CpuCost, EncoderCost, cpu_cost, cpu_line, encoder_cost
from mmcalib.domain.shapes import AudioShape, ImageShape, Shape, VideoShape, weight

SECONDS = st.floats(1e-4, 100)
POINTS = st.lists(st.tuples(st.integers(1, 10**8), SECONDS), min_size=1, max_size=14)


def item(shape: Shape, cpu_s: float = 0.0, count: int = 1, embeds: int = 0) -> ItemCost:
    basis: Basis = "real" if cpu_s else "blank"
    return ItemCost(shape, count, str(shape), embeds, embeds, 0, 9.0, (), basis, cpu_s)


def cpu(costs: list[ItemCost]) -> CpuCost | None:
    return cpu_cost(CostColumns.of("image", costs))


def encoder(costs: list[ItemCost], swept: list[Batch]) -> EncoderCost | None:
    return encoder_cost(CostColumns.of("image", costs), swept)


def images(*sides: int) -> list[ImageShape]:
    return [ImageShape(side, 100) for side in sides]


def test_where_all_was_measured_the_mean_is_that_of_the_items() -> None:
    first, second = images(10, 20)
    found = cpu([item(first, 0.1, count=3), item(second, 0.5)])
    assert found is not None
    assert (found.items, found.measured) == (4, 2)
    assert found.mean_s == pytest.approx((3 * 0.1 + 0.5) / 4)
    assert found.costliest.shape == second


@given(start=st.floats(0, 1), slope=st.floats(1e-9, 1e-3), sides=st.sets(st.integers(1, 5000)))
def test_shapes_that_were_not_measured_are_on_the_line(
    start: float, slope: float, sides: set[int]
) -> None:
    def true(shape: ImageShape) -> float:
        return start + slope * weight(shape)

    measured, others = images(100, 900, 2500), images(*sides - {100, 900, 2500})
    found = cpu([*(item(s, true(s)) for s in measured), *(item(s, count=7) for s in others)])
    assert found is not None
    total = sum(map(true, measured)) + 7 * sum(map(true, others))
    assert found.mean_s * found.items == pytest.approx(total, rel=1e-6)


@given(POINTS)
def test_no_item_costs_less_than_nothing_or_less_for_being_larger(
    points: list[tuple[int, float]],
) -> None:
    line = cpu_line(points)
    found = [line(w) for w in (0, 1, 10**4, 10**8)]
    assert found[0] >= 0
    assert found == sorted(found)
    most = max(seconds for _, seconds in points)
    assert line(min(w for w, _ in points)) <= most * (1 + 1e-6)


def test_of_one_measured_file_others_cost_in_proportion() -> None:
    found = cpu([item(ImageShape(200, 100), 0.4), item(ImageShape(100, 100))])
    assert found is not None
    assert found.mean_s == pytest.approx(0.3)


def test_stand_ins_alone_say_nothing_of_seconds() -> None:
    assert cpu([item(ImageShape(200, 100))]) is None


def test_frames_and_samples_are_what_is_decoded() -> None:
    assert weight(VideoShape(10, 1.0, 10.0, 4, 3)) == 120
    assert weight(AudioShape(16000, 8000)) == 16000


def singles(*points: tuple[int, float]) -> list[Batch]:
    return [Batch(1, tokens, seconds) for tokens, seconds in points]


@pytest.mark.parametrize(
    ("tokens", "seconds"),
    [(10, 0.2), (100, 0.2), (150, 0.3), (200, 0.4), (300, 0.9), (400, 1.4), (800, 2.8)],
)
def test_seconds_go_straight_from_one_size_to_the_next(tokens: int, seconds: float) -> None:
    swept = singles((100, 0.2), (400, 1.4), (200, 0.4))
    found = encoder([item(ImageShape(1, 1), embeds=tokens)], swept)
    assert found is not None
    assert found.mean_s == pytest.approx(seconds)


def encoded(swept: list[Batch], **counts: int) -> EncoderCost:
    """Of items of the tokens that each name says behind its letter."""
    costs = [
        item(ImageShape(place, 1), embeds=int(name[1:]), count=count)
        for place, (name, count) in enumerate(counts.items(), 1)
    ]
    found = encoder(costs, swept)
    assert found is not None
    return found


def test_the_mean_counts_every_item() -> None:
    found = encoded(singles((100, 0.1), (200, 0.3)), t100=9, t200=1)
    assert found.mean_s == pytest.approx(0.12)


def test_small_items_fill_batches_as_good_as_the_best() -> None:
    # Below 1,000 tokens the GPU waits for its next command: as long for 100 as for 1,000.
    swept = [*singles((100, 0.1), (1000, 0.1), (4000, 0.8)), Batch(4, 4000, 0.4)]
    found = encoded(swept, t100=1)
    assert (found.mean_s, found.least_s) == (pytest.approx(0.1), pytest.approx(0.01))


def test_an_item_larger_than_the_best_batch_takes_its_own_time() -> None:
    swept = [*singles((100, 0.1), (1000, 0.1), (4000, 0.8)), Batch(4, 4000, 0.4)]
    found = encoded(swept, t4000=1)
    assert (found.mean_s, found.least_s) == (pytest.approx(0.8), pytest.approx(0.8))


def test_padded_items_are_no_faster_in_a_batch() -> None:
    swept = [*singles((187, 0.1), (750, 0.1)), Batch(2, 374, 0.2), Batch(4, 748, 0.4)]
    found = encoded(swept, t187=3, t750=1)
    assert (found.mean_s, found.least_s) == (pytest.approx(0.1), pytest.approx(0.1, rel=0.01))


def test_without_a_single_item_or_any_item_there_is_no_mean() -> None:
    assert encoder([item(ImageShape(1, 1), embeds=100)], [Batch(2, 200, 0.1)]) is None
    assert encoder([], singles((100, 0.1))) is None


@given(
    sizes=st.lists(st.tuples(st.integers(1, 10**5), SECONDS), min_size=1, max_size=10),
    tokens=st.integers(0, 10**5),
)
def test_up_to_the_largest_size_seconds_stay_among_those_that_were_measured(
    sizes: list[tuple[int, float]], tokens: int
) -> None:
    most = max(size for size, _ in sizes)
    found = encoder([item(ImageShape(1, 1), embeds=min(tokens, most))], singles(*sizes))
    assert found is not None
    seconds = [s for _, s in sizes]
    assert min(seconds) * (1 - 1e-9) <= found.mean_s <= max(seconds) * (1 + 1e-9)


@given(
    sizes=st.lists(st.tuples(st.integers(1, 10**4), SECONDS), min_size=1, max_size=8),
    batches=st.lists(st.tuples(st.integers(2, 4), st.integers(1, 10**4), SECONDS), max_size=3),
    tokens=st.integers(1, 10**4),
)
def test_no_batch_makes_an_item_slower_than_it_is_alone(
    sizes: list[tuple[int, float]], batches: list[tuple[int, int, float]], tokens: int
) -> None:
    swept = [*singles(*sizes), *(Batch(n, n * each, seconds) for n, each, seconds in batches)]
    found = encoder([item(ImageShape(1, 1), embeds=tokens)], swept)
    assert found is not None
    assert 0 < found.least_s <= found.mean_s
