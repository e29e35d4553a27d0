from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmcalib.derive.encoder_curve import Curve, costlier_together, fit, residuals

TOKENS = [20, 32, 50, 80, 128, 200, 320, 512, 800, 1280]
coefficients = st.floats(0, 1e9)
slopes = st.floats(1e2, 1e6)


def points(curve: Curve) -> list[tuple[int, int]]:
    return [(tokens, round(curve.at(tokens))) for tokens in TOKENS]


@given(constant=coefficients, slope=slopes)
def test_a_line_is_found_again_and_has_no_square(constant: float, slope: float) -> None:
    curve = fit(points(Curve(constant, slope)))
    assert curve is not None
    assert curve.bytes_per_token_squared == 0
    assert curve.bytes_per_token == pytest.approx(slope, rel=1e-3, abs=1)
    assert curve.constant_bytes == pytest.approx(constant, rel=1e-3, abs=100)


@given(constant=st.floats(0, 1e6), slope=st.floats(0, 1e3), square=st.floats(50, 1e4))
def test_scores_of_all_pairs_are_found_as_a_square(
    constant: float, slope: float, square: float
) -> None:
    true = Curve(constant, slope, square)
    curve = fit(points(true))
    assert curve is not None
    assert curve.bytes_per_token_squared == pytest.approx(square, rel=1e-3)
    assert max(map(abs, residuals(curve, points(true)))) <= 1e-3 * true.at(TOKENS[-1])


@given(noise=st.lists(st.floats(-0.008, 0.008), min_size=10, max_size=10))
def test_noise_is_no_square(noise: list[float]) -> None:
    line = Curve(1e6, 1e5)
    most = line.at(TOKENS[-1])
    found = [(t, round(n + part * most)) for (t, n), part in zip(points(line), noise, strict=True)]
    curve = fit(found)
    assert curve is not None
    assert curve.bytes_per_token_squared == 0


def test_what_grows_slower_than_its_tokens_stays_a_line() -> None:
    bent = [(t, round(1e6 * t**0.5)) for t in TOKENS]
    curve = fit(bent)
    assert curve is not None
    assert curve.bytes_per_token_squared == 0


def test_residuals_of_a_line_sum_to_nothing() -> None:
    found = [(t, t * 1000 + (t % 7) * 500) for t in TOKENS]
    curve = fit(found)
    assert curve is not None
    assert sum(residuals(curve, found)) == pytest.approx(0, abs=1e-3)


@pytest.mark.parametrize("found", [[], [(100, 5)], [(100, 5), (200, 9)], [(100, 5)] * 4])
def test_fewer_than_three_sizes_have_no_curve(found: list[tuple[int, int]]) -> None:
    assert fit(found) is None


def test_four_sizes_are_too_few_for_a_square() -> None:
    curve = fit([(t, t * t) for t in (10, 100, 1000, 10000)])
    assert curve is not None
    assert curve.bytes_per_token_squared == 0


def test_items_that_are_padded_are_costlier_together_than_one_of_their_tokens() -> None:
    padded = [(t, 60_000_000) for t in TOKENS]
    several = [(256, 120_000_000), (512, 240_000_000)]
    assert costlier_together(padded, several) == (512, pytest.approx(4.0))


def test_items_whose_memory_goes_by_tokens_are_not() -> None:
    line = Curve(1e6, 1e5)
    several = [(256, round(line.at(256) * 1.05)), (512, round(line.at(512) * 0.9))]
    assert costlier_together(points(line), several) is None
    assert costlier_together(points(line), []) is None
    assert costlier_together([(100, 5)], several) is None
