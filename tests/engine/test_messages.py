from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmcalib.domain.setting import DEFAULT
from mmcalib.domain.shapes import AudioShape, ImageShape, Shape, VideoShape
from mmcalib.engine.messages import (
    Blank,
    Failed,
    File,
    Measure,
    Measured,
    Message,
    Reply,
    Request,
    decode,
    encode,
)

SIZE = st.integers(1, 1 << 40)
RATE = st.floats(0.01, 1e6)
SHAPES: st.SearchStrategy[Shape] = st.one_of(
    st.builds(ImageShape, SIZE, SIZE),
    st.builds(VideoShape, SIZE, RATE, RATE | SIZE.map(float), SIZE, SIZE),
    st.builds(AudioShape, SIZE, SIZE),
)


@given(st.lists(SHAPES))
def test_what_was_sent_arrives(shapes: list[Shape]) -> None:
    subjects = (*(Blank(shape.modality, shape) for shape in shapes), File("image", "ü\n.png"))
    sent = Measure(DEFAULT, subjects)
    arrived = decode(encode(sent))
    assert arrived == sent
    assert isinstance(arrived, Measure)
    assert [type(s) for s in arrived.subjects] == [type(s) for s in subjects]


def test_kinds_of_failure_cross_the_pipe() -> None:
    for message in (
        Failed("no", "not_multimodal"),
        Measured(0, None, "9 GiB", "host_memory"),
    ):
        assert decode(encode(message)) == message


def test_every_request_says_by_what_it_is_closed() -> None:
    requests = [one for one in Message.named.values() if issubclass(one, Request)]
    asked = [one for one in requests if one is not Request]
    assert len(asked) > 10
    for request in asked:
        assert issubclass(request.reply(), Reply)


@pytest.mark.parametrize(
    "line", [b"Measure", b"Measure\n{}", b"Nobody\n{}", b'Failed\n{"error":1}']
)
def test_anything_else_is_refused(line: bytes) -> None:
    with pytest.raises((ValueError, KeyError)):
        decode(line)
