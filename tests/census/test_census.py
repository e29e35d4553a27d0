"""The exact histogram of a corpus, and the sample that is chosen of it."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmcalib.census.census import Census, choose_sample
from mmcalib.domain.items import decode_line, encode_line
from mmcalib.domain.shape_columns import MAX_EXEMPLARS, ShapeCount
from mmcalib.domain.shapes import AudioShape, EncodedItem, Encoding, ImageShape, Shape, VideoShape

SMALL = st.integers(1, 3)
SHAPES: st.SearchStrategy[Shape] = st.one_of(
    st.builds(ImageShape, SMALL, SMALL),
    st.builds(VideoShape, SMALL, st.floats(1, 60), st.floats(0.1, 9), SMALL, SMALL),
    st.builds(AudioShape, SMALL, st.sampled_from([8000, 16000])),
)
ENCODINGS = st.builds(Encoding, file_mib=SMALL, fault=st.sampled_from(("", "cut_short")))
ITEMS = st.lists(st.tuples(SHAPES, st.text(max_size=3)), max_size=12)


def census(items: list[tuple[Shape, str]]) -> Census:
    taken = Census()
    for shape, path in items:
        taken.add(shape, path)
    return taken


@given(ITEMS, ITEMS)
def test_counts_add_up_in_any_order(a, b) -> None:
    one, other = census(a + b), census(b + a)
    assert list(one.encoded_counts()) == list(other.encoded_counts())
    assert one.items() == len(a + b)
    assert sum(one.items(modality) for modality in one.modalities()) == len(a + b)


@given(st.lists(st.tuples(SHAPES, ENCODINGS, st.text(max_size=3), st.booleans()), max_size=20))
def test_what_is_read_in_between_changes_nothing(items) -> None:
    """To be read is to go to the columns; what comes later is joined with what is there."""
    read, unread = Census(), Census()
    for shape, encoding, path, looks in items:
        read.add(shape, path, encoding=encoding)
        unread.add(shape, path, encoding=encoding)
        if looks:
            read.items()
    assert list(read.encoded_counts()) == list(unread.encoded_counts())
    expected = Counter(EncodedItem(shape, encoding) for shape, encoding, _, _ in items)
    assert {file: found.count for file, found in read.encoded_counts()} == expected
    for file, found in read.encoded_counts():
        mine = {path for shape, how, path, _ in items if EncodedItem(shape, how) == file}
        assert found.exemplars == tuple(sorted(mine)[:MAX_EXEMPLARS])


def test_a_census_of_more_shapes_than_are_kept_apart_is_exact() -> None:
    """Twice over, so that parts of the columns hold the same shapes."""
    sizes = [(width, height) for width in range(1, 301) for height in range(1, 201)]
    taken = Census()
    for turn in range(2):
        for width, height in sizes:
            taken.add(ImageShape(width, height), f"/media/{turn}/{width}/{height}.png")
    found = taken.counts("image")
    assert (len(found), taken.items()) == (len(sizes), 2 * len(sizes))
    assert found.count_of(ImageShape(7, 9)).exemplars == ("/media/0/7/9.png", "/media/1/7/9.png")
    assert list(found.shapes) == sorted(ImageShape(*size) for size in sizes)


def test_paths_that_others_took_the_place_of_are_let_go() -> None:
    taken = Census()
    for turn in range(5):
        for width in range(1, 30_001):
            taken.add(ImageShape(width, 1), f"/{9 - turn}/{width}")
        taken.items()
    found = taken.counts("image")
    assert found.paths.lists < 4 * len(found), "150,000 were made"
    assert found.count_of(ImageShape(5, 1)).exemplars == ("/5/5", "/6/5", "/7/5")


def test_exemplars_are_the_first_paths_whatever_the_order() -> None:
    shape = ImageShape(2, 1)
    taken = census([(shape, path) for path in ("d", "b", "a", "b", "c")])
    assert list(taken.shapes()) == [ShapeCount(shape, 5, ("a", "b", "c")[:MAX_EXEMPLARS])]


def test_files_of_one_shape_are_told_apart_by_how_they_hold_it() -> None:
    shape, taken = AudioShape(10, 8000), Census()
    taken.add(shape, "b.flac", encoding=Encoding(channels=2))
    taken.add(shape, "a.wav", encoding=Encoding(channels=1))
    taken.add(shape, "c.wav", encoding=Encoding(channels=1))
    assert list(taken.shapes()) == [ShapeCount(shape, 3, ("a.wav", "b.flac", "c.wav"))]
    left = taken.exclude_files(lambda file: file.encoding.channels > 1)
    assert list(left.shapes()) == [ShapeCount(shape, 2, ("a.wav", "c.wav"))]
    counts = [found.count for _, found in taken.encoded_counts()]
    assert counts == [2, 1]


@pytest.mark.parametrize(
    "file",
    [
        EncodedItem(ImageShape(640, 480), Encoding(file_mib=3)),
        EncodedItem(VideoShape(9, 1.5, 6.0, 8, 8), Encoding(codec="h264", promised_frames=20)),
        EncodedItem(AudioShape(9, 8000), Encoding(channels=2, sample_format="s16", fetched=True)),
    ],
)
def test_how_a_file_holds_its_shape_crosses_on_the_same_line(file: EncodedItem) -> None:
    line = encode_line(file)
    assert decode_line("a", line) == file


def test_of_a_small_picture_nothing_more_is_said() -> None:
    assert encode_line(EncodedItem(ImageShape(640, 480))) == encode_line(ImageShape(640, 480))
    assert decode_line("a", '["image",640,480]') == ImageShape(640, 480)


def numbered(*shapes: Shape) -> Census:
    return census([(shape, f"{number:03d}") for number, shape in enumerate(shapes)])


ORDINARY = [ImageShape(100 + n, 100) for n in range(50)]
HEAVY, WIDE, TALL, TINY = (
    ImageShape(1000, 900), ImageShape(900, 10), ImageShape(10, 800), ImageShape(9, 9),
)  # fmt: skip


def test_extremes_come_first() -> None:
    chosen = choose_sample(numbered(*ORDINARY, TINY, TALL, WIDE, HEAVY), 8)
    assert [shape for shape, _ in chosen[:4]] == [HEAVY, WIDE, TALL, TINY]
    assert len({shape for shape, _ in chosen}) == 8
    assert chosen[0][1] == "053"


def test_the_heaviest_is_in_the_smallest_sample() -> None:
    video = [VideoShape(9, 1.0, 9.0, 10, 10), VideoShape(1, 1.0, 1.0, 20, 20)]
    audio = [AudioShape(8000, 8000), AudioShape(9000, 96000)]
    chosen = choose_sample(numbered(*ORDINARY, HEAVY, *video, *audio), 1)
    assert [shape for shape, _ in chosen] == [HEAVY, video[0], audio[1]]


def test_a_video_s_largest_picture_and_longest_are_in() -> None:
    heavy = VideoShape(100, 10.0, 10.0, 100, 100)
    large, long = VideoShape(2, 10.0, 0.2, 400, 300), VideoShape(50, 0.1, 500.0, 64, 64)
    rest = [VideoShape(10 + n, 10.0, 1.0, 80, 80) for n in range(20)]
    chosen = [shape for shape, _ in choose_sample(numbered(*rest, large, long, heavy), 3)]
    assert chosen == [heavy, large, long]


@given(st.integers(0, 60))
def test_reproducible_and_bounded(size: int) -> None:
    chosen = choose_sample(numbered(*ORDINARY, HEAVY), size)
    assert chosen == choose_sample(numbered(*ORDINARY, HEAVY), size)
    assert len(chosen) == min(size, 51)
    alone = [shape for shape, _ in chosen]
    beside = choose_sample(numbered(*ORDINARY, HEAVY, AudioShape(1, 1)), size)
    assert [shape for shape, _ in beside if isinstance(shape, ImageShape)] == alone
