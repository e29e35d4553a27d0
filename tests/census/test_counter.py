from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from mmcalib.census.counter import CorpusCount, Prober
from mmcalib.census.counter import count_corpus as take_with
from mmcalib.census.executor import ProbeResult, ProbeTask
from mmcalib.corpus.chat import Prompt
from mmcalib.corpus.folder import FolderSource, PathsSource
from mmcalib.corpus.requests import Reading, RequestsSource
from mmcalib.domain.items import ByteSource, Item, Skipped
from mmcalib.domain.shapes import AudioShape, ImageShape, Shape
from mmcalib.errors import CorpusError
from mmcalib.media.probe import probe
from tests.census.looking import Inline
from tests.e2e import media


def count_corpus(sources, look=probe, **options) -> CorpusCount:
    return take_with(sources, Prober(Inline(look)), **options)


A, B, C, D = (ImageShape(10 * n, 8) for n in (1, 2, 3, 4))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "media"
    folder.mkdir()
    for name, shape in (("a", A), ("b", B), ("c", C), ("d", D)):
        Image.new("RGB", (shape.width_px, shape.height_px)).save(folder / f"{name}.png")
    return folder


def requests(folder: Path, *lines: list[tuple[str, str]]) -> RequestsSource:
    path = media.requests(folder.parent / "requests.jsonl", *lines)
    return RequestsSource(path, Reading(folder.parent / "scratch"))


def images(*names: str) -> list[tuple[str, str]]:
    return [("image", f"media/{name}.png") for name in names]


def counts(taken: CorpusCount) -> dict[object, int]:
    return {entry.shape: entry.count for entry in taken.census.shapes()}


def test_a_folder_counts_every_file_once(folder: Path) -> None:
    (folder / "words.txt").write_text("words")
    taken = count_corpus([FolderSource(path) for path in (folder, folder / "a.png", folder)])
    assert counts(taken) == {A: 1, B: 1, C: 1, D: 1}
    assert taken.prompts.prompts() == 0
    assert taken.files == 5
    words = Skipped(str(folder / "words.txt"), "not an image, video or audio file (text)")
    assert taken.skipped == [words]


@pytest.mark.parametrize("requests_first", [True, False])
def test_items_of_requests_weigh_as_often_as_they_are_named(folder, requests_first) -> None:
    sources = [requests(folder, images("a", "a", "b"), images("a"), []), FolderSource(folder)]
    taken = count_corpus(sources if requests_first else sources[::-1])
    assert counts(taken) == {A: 3, B: 1, C: 1, D: 1}
    assert taken.prompts.prompts() == 3
    assert taken.prompts.items_covering(("image",), 1.0) == {"image": 3}
    assert taken.files == 4


def test_a_file_that_requests_name_by_a_link_is_the_same_file(folder: Path) -> None:
    (folder / "link.png").symlink_to("a.png")
    taken = count_corpus([requests(folder, images("link", "link")), FolderSource(folder)])
    assert counts(taken)[A] == 2


def test_a_request_with_an_unreadable_item_is_skipped_but_its_good_files_count(folder) -> None:
    (folder / "bad.png").write_bytes(b"\x89PNG\r\n\x1a\n\0\0")
    asked = requests(folder, images("a", "bad"), images("a"), images("b", "bad"), images("none"))
    taken = count_corpus([asked])
    assert counts(taken) == {A: 1, B: 1}
    assert taken.prompts.prompts() == 1
    bad, *lines, none = [skipped.path for skipped in taken.skipped]
    assert (bad, none) == (str(folder / "bad.png"), str(folder / "none.png"))
    assert lines == [f"requests.jsonl:{n}" for n in (1, 3, 4)]
    assert taken.skipped[1].reason.startswith("unreadable item: ")
    assert taken.skipped[3].reason.startswith("missing file: ")


def test_a_wrongly_declared_file_counts_only_where_a_folder_has_it(folder: Path) -> None:
    wrong = requests(folder, [("video", "media/a.png")], images("b"))
    taken = count_corpus([wrong])
    assert counts(taken) == {B: 1}
    assert taken.skipped[0] == Skipped(str(folder / "a.png"), "declared as video, but is image")
    taken = count_corpus([wrong, FolderSource(folder)])
    assert counts(taken) == {A: 1, B: 1, C: 1, D: 1}
    assert [skipped.path for skipped in taken.skipped] == ["requests.jsonl:1"]


def test_every_file_is_probed_once(folder: Path) -> None:
    looked: list[str] = []

    def noted(item: Item) -> Shape | Skipped:
        looked.append(item.path)
        return probe(item)

    lines = requests(folder, images("a", "b"), images("b", "a"))
    count_corpus([lines, FolderSource(folder)], noted)
    assert len(looked) == len(set(looked)) == 4


def test_nothing_to_measure(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("words")
    with pytest.raises(CorpusError, match=r"nothing to measure: .* in 1 files; .*a.txt: not an"):
        count_corpus([FolderSource(tmp_path)])


class Carried:
    """Six items and then six requests, whose bytes only the source can get at."""

    def __init__(self, size_bytes: int) -> None:
        self.data = bytes(size_bytes)

    def items(self) -> Iterator[Item]:
        for number in range(6):
            held = ByteSource("1", len(self.data), data=self.data)
            yield Item(f"tar://{number}.png::/a.tgz", byte_source=held)

    def prompts(self) -> Iterator[Prompt | Skipped]:
        for item in self.items():
            yield Prompt(f"{item.path}#", (replace(item, path=f"{item.path}.gz"),))


@pytest.mark.parametrize(("size_bytes", "together"), [(1, 6), (6 << 20, 3), (20 << 20, 1)])
def test_few_large_items_are_under_way_at_once(size_bytes: int, together: int) -> None:
    class Noting(Inline):
        def submit(self, orders: Sequence[ProbeTask]) -> Callable[[], list[ProbeResult]]:
            sizes.append(len(orders))
            return super().submit(orders)

    sizes: list[int] = []
    take_with([Carried(size_bytes)], Prober(Noting(lambda item: A)))
    assert sizes == [together] * (12 // together)


@dataclass
class Asked:
    """Requests in memory: per request its items, each a path and what it is declared."""

    requests: list[list[Item]]

    def prompts(self) -> Iterator[Prompt | Skipped]:
        for number, items in enumerate(self.requests):
            origin = f"requests.jsonl:{number}"
            yield Prompt(origin, tuple(items)) if items else Skipped(origin, "not a chat request")

    def items(self) -> Iterator[Item | Skipped]:
        yield from dict.fromkeys(item for items in self.requests for item in items)


KINDS: dict[str, Shape | None] = {"a": A, "b": B, "c": AudioShape(8, 8000), "bad": None}
NAMED = st.sampled_from([f"/{top}/{name}" for top in ("x", "x/y", "z") for name in KINDS])
ASKED = st.lists(
    st.lists(st.builds(Item, NAMED, st.sampled_from(["image", "audio", "video"])), max_size=3),
    max_size=8,
)


def look(item: Item) -> Shape | Skipped:
    shape = KINDS[item.path.rpartition("/")[2]]
    if shape is None:
        return Skipped(item.path, "broken")
    if item.declared not in (None, shape.modality):
        return Skipped(item.path, f"declared {item.declared}, is {shape.modality}")
    return shape


@given(ASKED, st.lists(NAMED, unique=True))
def test_every_file_is_counted_or_listed_and_never_both(asked, paths: list[str]) -> None:
    lines = [f"{path}\n".encode() for path in [*paths, "/good/a"]]
    taken = count_corpus([Asked(asked), PathsSource(lines)], look=look, in_order=False)
    listed = {skipped.path for skipped in taken.skipped if skipped.path.startswith("/")}
    named = {"/good/a", *paths, *(item.path for items in asked for item in items)}
    assert taken.files == len(named)
    usable = [i for p in asked if p and not any(isinstance(look(i), Skipped) for i in p) for i in p]
    once = named - listed - {item.path for item in usable}
    assert taken.census.items() == len(usable) + len(once)
