"""Items that the requests use, and repeats among them."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmcalib.census.accesses import Accesses, AccessLog
from mmcalib.corpus.chat import ChatRequest, Prompt
from mmcalib.domain.items import Item
from mmcalib.domain.shapes import ImageShape, VideoShape
from mmcalib.progress import Silent, Task
from tests.corpus.listed import width_of

SHAPE = ImageShape(8, 8)
CLIP = VideoShape(2, 1.0, 2.0, 8, 8)


def image(path: str | Path) -> Item:
    return Item(str(path), "image")


def asking(*items: Item) -> Prompt:
    return Prompt("r.jsonl:1", items)


def logged(*requests: list[Item]) -> AccessLog:
    log = AccessLog()
    for items in requests:
        log.add(asking(*items), [SHAPE if item.declared == "image" else CLIP for item in items])
    return log


def named(accesses: Accesses) -> list[list[str]]:
    return [
        [Path(accesses.items[index][1]).name for index in request]
        for request in accesses.requests()
    ]


@pytest.fixture
def media(tmp_path: Path) -> Path:
    for name, content in {"a": b"one", "b": b"two", "copy": b"one", "long": b"longer"}.items():
        (tmp_path / name).write_bytes(content)
    return tmp_path


def test_equal_content_is_one_item_whatever_its_path(media: Path) -> None:
    os.link(media / "a", media / "hard")
    (media / "soft").symlink_to("long")
    names = ["a", "copy", "hard", "long", "soft", "b"]
    accesses = logged(*([image(media / name)] for name in names)).accesses()
    assert named(accesses) == [["a"], ["a"], ["a"], ["long"], ["long"], ["b"]]
    assert [Path(path).name for _, path in accesses.items] == ["a", "long", "b"]


def test_one_file_as_image_and_as_video_is_two_items(media: Path) -> None:
    accesses = logged([image(media / "a"), Item(str(media / "a"), "video")]).accesses()
    assert [shape for shape, _ in accesses.items] == [SHAPE, CLIP]


def test_what_is_gone_is_equal_to_nothing(media: Path) -> None:
    log = logged([image(media / "a")], [image(media / "copy")], [image(media / "b")])
    (media / "a").unlink()
    assert named(log.accesses()) == [["a"], ["copy"], ["b"]]


class Counting(Silent):
    def __init__(self) -> None:
        self.compared = 0

    @contextmanager
    def step(self, title: str, total: int | None = None) -> Iterator[Task]:
        assert title == "comparing files of equal size"
        self.compared += total or 0
        with super().step(title, total) as task:
            yield task


def test_only_files_of_equal_size_are_read(media: Path) -> None:
    progress = Counting()
    logged([image(media / "a")], [image(media / "long")]).accesses(progress)
    assert progress.compared == 0
    logged(*([image(media / name)] for name in ("a", "b", "copy", "long"))).accesses(progress)
    assert progress.compared == 3


def test_a_long_log_ends_with_a_whole_request(media: Path) -> None:
    log = AccessLog(most=3)
    for _ in range(3):
        log.add(asking(image(media / "a"), image(media / "b")), [SHAPE, SHAPE])
    log.add(asking(image(media / "a")), [SHAPE])
    accesses = log.accesses()
    assert named(accesses) == [["a", "b"]]
    assert not accesses.complete


@given(st.lists(st.lists(st.integers(0, 5), max_size=4), max_size=20))
def test_every_request_with_items_comes_back_in_its_order(requests: list[list[int]]) -> None:
    log = AccessLog()
    for request in requests:
        log.add(
            asking(*(image(f"/gone/{n}") for n in request)), [ImageShape(n + 1, 1) for n in request]
        )
    accesses = log.accesses()
    found = [[width_of(accesses.items[i][0]) - 1 for i in r] for r in accesses.requests()]
    assert found == [request for request in requests if request]
    assert accesses.complete


def test_the_first_requests_say_where_they_stand(media: Path) -> None:
    """Those without items among them, as they come."""
    log = AccessLog()
    log.add(Prompt("r.jsonl:1", (image(media / "a"),), ChatRequest([], {"max_tokens": 7})), [SHAPE])
    log.add(Prompt("r.jsonl:2", (), ChatRequest.of_user("hello")), [])
    log.add(Prompt("r.jsonl:3", (image(media / "copy"), image(media / "b"))), [SHAPE, SHAPE])
    accesses = log.accesses()
    found = [(one.origin, list(one.items), one.answer_tokens) for one in accesses.known_origins()]
    assert found == [("r.jsonl:1", [0], 7), ("r.jsonl:2", [], None), ("r.jsonl:3", [0, 1], None)]
    assert [list(request) for request in accesses.requests()] == [[0], [0, 1]]
