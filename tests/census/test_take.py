from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import soundfile
from PIL import Image

from mmcalib.census.shapes import AudioShape, ImageShape
from mmcalib.census.take import Taken, take
from mmcalib.corpus.folder import FolderSource
from mmcalib.corpus.item import Item, Prompt, Skipped
from mmcalib.corpus.requests import RequestsSource
from mmcalib.errors import CorpusError
from mmcalib.progress import Silent

A, B, C, D = (ImageShape(10 * n, 8) for n in (1, 2, 3, 4))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "media"
    folder.mkdir()
    for name, shape in (("a", A), ("b", B), ("c", C), ("d", D)):
        Image.new("RGB", (shape.width_px, shape.height_px)).save(folder / f"{name}.png")
    return folder


def requests(folder: Path, *lines: list[tuple[str, str]]) -> RequestsSource:
    path = folder.parent / "requests.jsonl"
    with path.open("w") as file:
        for parts in lines:
            content = [{"type": kind, kind: {"url": f"media/{name}"}} for kind, name in parts]
            print(json.dumps({"messages": [{"role": "user", "content": content}]}), file=file)
    return RequestsSource(path, scratch=folder.parent / "scratch")


def images(*names: str) -> list[tuple[str, str]]:
    return [("image_url", f"{name}.png") for name in names]


def counts(taken: Taken) -> dict[object, int]:
    return {entry.shape: entry.count for entry in taken.census.shapes()}


def test_a_folder_counts_every_file_once(folder: Path) -> None:
    (folder / "words.txt").write_text("words")
    taken = take([FolderSource(folder), FolderSource(folder / "a.png"), FolderSource(folder)])
    assert counts(taken) == {A: 1, B: 1, C: 1, D: 1}
    assert taken.prompts.prompts() == 0
    assert taken.files == 5
    assert taken.skipped == [
        Skipped(str(folder / "words.txt"), "not an image, video or audio file (text)")
    ]


@pytest.mark.parametrize("requests_first", [True, False])
def test_items_of_requests_weigh_as_often_as_they_are_named(folder, requests_first) -> None:
    lines = requests(folder, images("a", "a", "b"), images("a"), [])
    sources = [lines, FolderSource(folder)]
    taken = take(sources if requests_first else sources[::-1])
    assert counts(taken) == {A: 3, B: 1, C: 1, D: 1}
    assert taken.prompts.prompts() == 3
    assert taken.prompts.items_per_prompt("image") == 3
    assert taken.files == 4


def test_a_file_that_requests_name_by_a_link_is_the_same_file(folder: Path) -> None:
    (folder / "link.png").symlink_to("a.png")
    taken = take([requests(folder, images("link", "link")), FolderSource(folder)])
    assert counts(taken)[A] == 2


def test_a_request_with_an_unreadable_item_is_skipped_but_its_good_files_count(folder) -> None:
    (folder / "bad.png").write_bytes(b"\x89PNG\r\n\x1a\n\0\0")
    lines = requests(folder, images("a", "bad"), images("a"), images("b", "bad"), images("none"))
    taken = take([lines])
    assert counts(taken) == {A: 1, B: 1}
    assert taken.prompts.prompts() == 1
    paths = [skipped.path for skipped in taken.skipped]
    assert paths == [
        str(folder / "bad.png"),
        "requests.jsonl:1",
        "requests.jsonl:3",
        "requests.jsonl:4",
        str(folder / "none.png"),
    ]
    assert taken.skipped[1].reason.startswith("names an unreadable item: ")
    assert taken.skipped[3].reason.startswith("names a missing file: ")


def test_a_wrongly_declared_file_counts_only_where_a_folder_has_it(folder: Path) -> None:
    wrong = requests(folder, [("video_url", "a.png")], images("b"))
    assert counts(take([wrong])) == {B: 1}
    taken = take([wrong, FolderSource(folder)])
    assert counts(taken) == {A: 1, B: 1, C: 1, D: 1}
    assert taken.skipped[0] == Skipped(str(folder / "a.png"), "declared video, is image")


def test_the_same_corpus_gives_the_same_census(folder: Path) -> None:
    lines = requests(folder, images("d", "a"), images("b", "bad"))
    first, second = (take([lines, FolderSource(folder)]) for _ in range(2))
    assert first == second


def test_shards_add_up(folder: Path) -> None:
    soundfile.write(folder / "s.wav", [0.0] * 80, 8000)
    parts = [take([FolderSource(path)]).census for path in sorted(folder.iterdir())]
    whole = take([FolderSource(folder)]).census
    merged = parts[0]
    for part in parts[1:]:
        merged = merged.merge(part)
    assert merged == whole
    assert whole.items("audio") == 1
    assert next(whole.shapes("audio")).shape == AudioShape(80, 8000)


def test_nothing_to_measure(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("words")
    with pytest.raises(CorpusError, match=r"nothing to measure: .* in 1 files; .*a.txt: not an"):
        take([FolderSource(tmp_path)])
    taken = take([FolderSource(tmp_path)], allow_empty=True)
    assert taken.census.items() == 0
    assert len(taken.skipped) == 1


@dataclass
class Counting(Silent):
    titles: list[str] = field(default_factory=list)
    done: int = 0

    @contextmanager
    def step(self, title: str, total: int | None = None) -> Iterator[Counting]:
        self.titles.append(title)
        yield self

    def advance(self, done: int = 1) -> None:
        self.done += done

    def total(self, total: int) -> None: ...


def test_every_file_is_probed_once(folder: Path) -> None:
    progress = Counting()
    lines = requests(folder, images("a", "b"), images("b", "a"))
    take([lines, FolderSource(folder)], progress=progress)
    assert progress.titles == ["reading the corpus"]
    assert progress.done == 4


def test_an_interrupt_passes(folder: Path) -> None:
    class Interrupted:
        def items(self) -> Iterator[Item | Skipped]:
            yield Item(str(folder / "a.png"))
            raise KeyboardInterrupt

        def prompts(self) -> Iterator[Prompt | Skipped]:
            yield from ()

    with pytest.raises(KeyboardInterrupt):
        take([Interrupted()])


def test_pipes_do_not_hang(folder: Path) -> None:
    os.mkfifo(folder / "pipe.png")
    taken = take([requests(folder, images("a"), images("pipe")), FolderSource(folder)])
    assert Skipped(str(folder / "pipe.png"), "not a regular file") in taken.skipped
    assert counts(taken) == {A: 1, B: 1, C: 1, D: 1}
