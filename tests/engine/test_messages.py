import io
import pickle
from typing import Any

import hypothesis
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmcalib.child.service import OwnPickler
from mmcalib.domain import knobs
from mmcalib.domain.knobs import DEFAULT, Knob
from mmcalib.domain.model import ModelInfo
from mmcalib.domain.shapes import AudioShape, ImageShape, Shape, VideoShape
from mmcalib.engine import messages as m
from mmcalib.errors import ConfigRejected, VllmMissing
from tests.workflows.fake_host import opened

SIZE = st.integers(1, 1 << 40)
RATE = st.floats(0.01, 1e6)
SHAPES: st.SearchStrategy[Shape] = st.one_of(
    st.builds(ImageShape, SIZE, SIZE),
    st.builds(VideoShape, SIZE, RATE, RATE | SIZE.map(float), SIZE, SIZE),
    st.builds(AudioShape, SIZE, SIZE),
)


def through_the_pipe(message: object) -> Any:
    pickled = io.BytesIO()
    OwnPickler(pickled).dump(message)
    return pickle.loads(pickled.getvalue())


@given(st.lists(SHAPES))
def test_what_was_sent_arrives(shapes: list[Shape]) -> None:
    blanks = [m.Blank(shape) for shape in shapes]
    subjects: tuple[m.Blank | m.File, ...] = (*blanks, m.File("image", "ü\n.png"))
    sent = m.Measure(DEFAULT, subjects)
    arrived = through_the_pipe(sent)
    assert arrived == sent
    assert isinstance(arrived, m.Measure)
    assert [type(s) for s in arrived.subjects] == [type(s) for s in subjects]


PATH = st.lists(st.text(max_size=5), min_size=1, max_size=3).map(tuple)
STEPS = st.lists(SIZE, max_size=4).map(tuple)
BLEEDS = st.sampled_from([(), ("video",), ("video", "audio")])
ANY_KNOB: st.SearchStrategy[Knob] = st.one_of(
    st.builds(
        knobs.AreaCap,
        modality=st.sampled_from(["image", "video"]),
        path=PATH,
        value=SIZE,
        bleeds=BLEEDS,
        token_px=st.none() | SIZE,
        least_name=st.text(max_size=5),
        least_px=SIZE,
    ),
    st.builds(knobs.EdgeCap, path=PATH, value=SIZE, bleeds=BLEEDS, steps=STEPS),
    st.builds(knobs.TileCap, path=PATH, value=SIZE, bleeds=BLEEDS),
    st.builds(knobs.CropCap, path=PATH, value=SIZE, bleeds=BLEEDS, steps=STEPS, switch=st.text()),
    st.builds(knobs.FrameSampling, path=PATH, value=SIZE | RATE, steps=st.tuples(SIZE, RATE)),
    st.builds(knobs.TokenCap, path=PATH, value=SIZE, bleeds=BLEEDS, steps=STEPS),
)


@given(st.lists(ANY_KNOB, max_size=4).map(tuple))
def test_a_knob_arrives_as_the_type_that_was_sent(found: tuple[Knob, ...]) -> None:
    arrived = through_the_pipe(opened(knobs=found))
    assert isinstance(arrived, ModelInfo)
    assert arrived.knobs == found
    sent = [(type(knob), type(knob.value)) for knob in found]
    assert [(type(knob), type(knob.value)) for knob in arrived.knobs] == sent


def test_kinds_of_failure_cross_the_pipe() -> None:
    measured = m.Measured(None, "9 GiB", "host_memory")
    assert through_the_pipe(measured) == measured
    sent = ConfigRejected("no", hint="h", reason="n", exhausted="memory"), VllmMissing()
    arrived = [(type(error), vars(error)) for error in map(through_the_pipe, sent)]
    assert arrived == [(type(error), vars(error)) for error in sent]


@pytest.mark.parametrize("value", [np.float64(1.5), np.int64(3), np.str_("a"), pytest.ExitCode(1)])
def test_numbers_and_texts_of_other_packages_arrive_as_plain_ones(value: Any) -> None:
    arrived = through_the_pipe(m.EnvironmentReport("cuda", value, None, {})).free_bytes
    assert arrived == value
    assert type(arrived) in (int, float, str)


@pytest.mark.parametrize("value", [np.zeros(1), hypothesis.Phase.shrink])
def test_anything_else_that_is_not_our_own_stays_in_the_child(value: Any) -> None:
    with pytest.raises(TypeError, match=r"a (numpy|hypothesis)\.[\w.]+ is in an answer"):
        through_the_pipe(m.EnvironmentReport("cuda", value, None, {}))
