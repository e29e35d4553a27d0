from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mmcalib.census.census import Census, choose_sample
from mmcalib.domain.shapes import AudioShape, ImageShape, Shape, VideoShape


def census(*shapes: Shape) -> Census:
    taken = Census()
    for number, shape in enumerate(shapes):
        taken.add(shape, f"{number:03d}")
    return taken


ORDINARY = [ImageShape(100 + n, 100) for n in range(50)]
HEAVY, WIDE, TALL, SMALL = (
    ImageShape(1000, 900), ImageShape(900, 10), ImageShape(10, 800), ImageShape(9, 9),
)  # fmt: skip


def test_extremes_come_first() -> None:
    chosen = choose_sample(census(*ORDINARY, SMALL, TALL, WIDE, HEAVY), 8, seed=1)
    assert [shape for shape, _ in chosen[:4]] == [HEAVY, WIDE, TALL, SMALL]
    assert len({shape for shape, _ in chosen}) == 8
    assert chosen[0][1] == "053"


def test_the_heaviest_is_in_the_smallest_sample() -> None:
    video = [VideoShape(9, 1.0, 9.0, 10, 10), VideoShape(1, 1.0, 1.0, 20, 20)]
    audio = [AudioShape(8000, 8000), AudioShape(9000, 96000)]
    chosen = choose_sample(census(*ORDINARY, HEAVY, *video, *audio), 1, seed=0)
    assert [shape for shape, _ in chosen] == [HEAVY, video[0], audio[1]]


def test_a_video_s_largest_picture_and_longest_are_in() -> None:
    heavy = VideoShape(100, 10.0, 10.0, 100, 100)
    large, long = VideoShape(2, 10.0, 0.2, 400, 300), VideoShape(50, 0.1, 500.0, 64, 64)
    rest = [VideoShape(10 + n, 10.0, 1.0, 80, 80) for n in range(20)]
    chosen = [shape for shape, _ in choose_sample(census(*rest, large, long, heavy), 3, seed=0)]
    assert chosen == [heavy, large, long]


@given(st.integers(0, 60), st.integers())
def test_reproducible_and_bounded(size: int, seed: int) -> None:
    taken = census(*ORDINARY, HEAVY)
    chosen = choose_sample(taken, size, seed)
    assert chosen == choose_sample(census(*ORDINARY, HEAVY), size, seed)
    assert len(chosen) == min(size, 51)
    alone = [shape for shape, _ in chosen]
    beside = choose_sample(census(*ORDINARY, HEAVY, AudioShape(1, 1)), size, seed)
    assert [shape for shape, _ in beside if isinstance(shape, ImageShape)] == alone
