"""Several children at one question: the same answers, in order, whatever becomes of a helper."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Timer

import pytest
from PIL import Image

from mmcalib.domain.knobs import DEFAULT
from mmcalib.domain.shapes import ImageShape, VideoShape
from mmcalib.engine.helpers import SHARE, CachingHost, HostWithHelpers, WorkQueue
from mmcalib.engine.messages import Blank, File, Measure, Measured, OpenModel
from mmcalib.errors import EngineDied
from tests.engine.conftest import QWEN, Lab, folder_of
from tests.processes import is_alive, wait_until

pytestmark = pytest.mark.engine

# Some take longer than others.
IMAGES = tuple(Blank(ImageShape(64 + 40 * n % 1900, 64 + 7 * n)) for n in range(20 * SHARE))
# More than any machine that runs tests has memory for.
VAST = Blank(VideoShape(32, 8.0, 4.0, 200_000, 200_000))


@contextmanager
def crew(folder: Path, worth_s: float = 0.0) -> Iterator[HostWithHelpers]:
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("one core: nobody could help")
    with HostWithHelpers(worth_s=worth_s) as host:
        host.ask(OpenModel(str(folder), search_knobs=False), "opening")
        yield host


def answered(host: HostWithHelpers, subjects: tuple[Blank | File, ...] = IMAGES) -> list[Measured]:
    return list(host.measure(Measure(DEFAULT, subjects), "measuring"))


def told(answers: list[Measured]) -> list[object]:
    return [
        (a.index, a.cost and (a.cost.tokens, a.cost.embeds, a.cost.tensor_bytes, a.cost.sampled))
        for a in answers
    ]


def pids(host: HostWithHelpers) -> list[int]:
    return [helper.pid for helper in host._ready]


@pytest.mark.slow
def test_helpers_answer_as_the_child_itself(lab: Callable[[str], Lab], engine_cache: Path) -> None:
    expected = [
        (n, (cost.tokens, cost.embeds, cost.tensor_bytes, cost.sampled))
        for n, cost in enumerate(lab(QWEN).costs(*IMAGES))
        if not isinstance(cost, str)
    ]
    with crew(folder_of(QWEN, engine_cache)) as host:
        assert told(answered(host)) == expected
        wait_until(lambda: bool(host._ready), 120)
        first = pids(host)
        assert told(answered(host)) == expected, "they help from the start"
        assert pids(host) == first
        (vast,) = [a for a in answered(host, (*IMAGES, VAST)) if a.refused_by == "host_memory"]
        assert vast.index == len(IMAGES)
        assert not host._ready, "without them there was more room, and too little all the same"
        assert not any(map(is_alive, first))


@pytest.mark.slow
def test_what_a_helper_leaves_undone_others_do(engine_cache: Path) -> None:
    with crew(folder_of(QWEN, engine_cache)) as host:
        expected = told(answered(host))
        wait_until(lambda: bool(host._ready), 120)
        helper = pids(host)[0]
        Timer(0.3, os.kill, (helper, signal.SIGKILL)).start()
        assert told(answered(host)) == expected
        wait_until(lambda: helper not in pids(host), 120)


@pytest.mark.slow
def test_nobody_is_begun_for_what_is_soon_done(engine_cache: Path) -> None:
    with crew(folder_of(QWEN, engine_cache), worth_s=10_000.0) as host:
        assert [answer.index for answer in answered(host)] == list(range(len(IMAGES)))
        assert not host._ready


@pytest.mark.slow
def test_another_model_ends_them(engine_cache: Path) -> None:
    folder = folder_of(QWEN, engine_cache)
    with crew(folder) as host:
        answered(host)
        wait_until(lambda: bool(host._ready), 120)
        before = pids(host)
        host.ask(OpenModel(str(folder), search_knobs=False), "opening")
        assert not host._ready
        assert not any(map(is_alive, before))
        # One that is only beginning when the host ends, ends too.
        answered(host)
    assert not host._ready


def test_what_was_heard_once_needs_no_child(engine_cache, tmp_path: Path, with_vllm: None) -> None:
    path = tmp_path / "photo.png"
    Image.new("RGB", (640, 480)).save(path)
    both = (File("image", str(path)), Blank(ImageShape(640, 480)))
    with CachingHost() as host:
        host.ask(OpenModel(str(folder_of(QWEN, engine_cache)), search_knobs=False), "opening")
        before = answered(host, both)
        (vast,) = answered(host, (VAST,))
        os.kill(host.pid, signal.SIGKILL)
        assert answered(host, both) == before
        assert vast.refused_by == "host_memory"
        with pytest.raises(EngineDied):
            answered(host, (VAST,))
        host.revive()
        (icon,) = answered(host, (Blank(ImageShape(64, 64)),))
    assert icon.cost is not None, "it has the model open again"


def test_shares_are_answered_once_and_in_order() -> None:
    shares = WorkQueue(Measure(DEFAULT, IMAGES))
    answers = [Measured(n, None) for n in range(SHARE)]
    assert [shares.take() for _ in range(3)] == [0, SHARE, 2 * SHARE]
    for done in ((2 * SHARE, answers), (SHARE, None), (0, answers)):
        shares.done.put(done)
    assert [answer.index for answer in shares.collect(0) or ()] == list(range(SHARE))
    assert shares.collect(SHARE) is None
    assert shares.take() == SHARE, "what was given back comes first"
    shares.done.put((SHARE, answers))
    found = [answer.index for n in (1, 2) for answer in shares.collect(n * SHARE) or ()]
    assert found == list(range(SHARE, 3 * SHARE))
    shares.stop()
    assert shares.take() is None
