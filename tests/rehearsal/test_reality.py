"""The imaginary GPU against real tensors: the same modules, run on the CPU under torch's events."""

import pytest

from tests.programs import answer_of

pytestmark = [pytest.mark.engine, pytest.mark.slow]
TOLERANCE = 0.01
# CUDA's allocator leaves up to 1 MiB unsplit, depending on free blocks, which differ on the CPU.
UNSPLIT_BYTES = 2 << 20
Compared = dict[tuple[str, str, tuple[int, ...]], tuple[dict[str, int], dict[str, int]]]


@pytest.fixture(scope="module")
def compared(with_vllm: None) -> Compared:
    """(real, imagined) peaks by part, attention and size."""
    answer = answer_of("-m", "tests.rehearsal.reality")
    return {(part, by, tuple(size)): (real, made) for (part, by, size), real, made in answer}


def off(found: int, truth: int) -> float:
    return abs(found - truth) / truth


@pytest.mark.parametrize("figure", ["weights_bytes", "run_bytes"])
def test_requested_bytes_are_within_one_percent_of_the_real_ones(compared, figure: str) -> None:
    missed = {
        case: (imagined[figure], real[figure])
        for case, (real, imagined) in compared.items()
        if off(imagined[figure], real[figure]) > TOLERANCE
    }
    assert missed == {}


def test_every_part_ran_with_every_attention(compared: Compared) -> None:
    parts = {(part, attention) for part, attention, _ in compared}
    assert parts == {(p, a) for p in ("vision", "language", "audio") for a in ("sdpa", "eager")}
    assert all(real["run_bytes"] > 10 << 20 for real, _ in compared.values())


def test_the_replayed_allocator_makes_the_same_blocks_of_the_real_requests(compared) -> None:
    missed = {
        case: (imagined["run_block_bytes"], real["run_block_bytes"])
        for case, (real, imagined) in compared.items()
        if abs(imagined["run_block_bytes"] - real["run_block_bytes"]) > UNSPLIT_BYTES
    }
    assert missed == {}
