"""Archives: members read in place."""

import gzip
import os
import tarfile
import time
import zipfile
from pathlib import Path

import pytest

from mmcalib.census.counter import count_corpus
from mmcalib.corpus.archives import ArchiveSource
from mmcalib.corpus.chat import Prompt
from mmcalib.domain.items import Item, Skipped
from mmcalib.domain.shapes import AudioShape, ImageShape, VideoShape
from mmcalib.media.decode import decode_check
from mmcalib.media.probe import probe
from mmcalib.storage.access import local_copy, open_item
from tests.builders import expect
from tests.census.looking import prober
from tests.corpus.listed import items_of, prompts_of, reason
from tests.corpus.media import wav
from tests.corpus.tars import END, blocks, member, png, samples, tar, zipped
from tests.e2e.media import clip

CLIP = ImageShape(9, 8)


@pytest.fixture
def shard(tmp_path: Path) -> Path:
    return tmp_path / "0001.tar"


def prompts(shard: Path) -> list[Prompt]:
    return prompts_of(ArchiveSource("tar", str(shard)))


def names(shard: Path) -> list[str]:
    """The members that are items, in order."""
    found = [one for one in ArchiveSource("tar", str(shard)).items() if isinstance(one, Item)]
    return [item.path.removeprefix("tar://").partition("::")[0] for item in found]


def skipped(shard: Path) -> dict[str, str]:
    found = ArchiveSource("tar", str(shard)).items()
    return {item.path: item.reason for item in found if isinstance(item, Skipped)}


def test_members_of_one_prefix_are_one_prompt(shard: Path) -> None:
    tar(
        shard,
        ("a/1.jpg", png()),
        ("a/1.right.png", png(18)),
        ("a/1.mp4", clip(shard.with_name("film.mp4"), 64, 48, 1).read_bytes()),
        ("a/1.wav", wav(80, 8000)),
        ("a/1.txt", "Què?\n".encode()),
        ("a/1.cls", b"7"),
    )
    (prompt,) = prompts(shard)
    paths = [f"tar://a/1.{ending}::{shard}" for ending in ("jpg", "right.png", "mp4", "wav")]
    assert prompt.items == tuple(Item(path) for path in paths)
    assert (prompt.origin, prompt.request.text()) == (f"{shard}:a/1", "Què?")
    kinds = ["image_url", "image_url", "video_url", "audio_url"]
    media = [{"type": kind, kind: {"url": path}} for kind, path in zip(kinds, paths, strict=True)]
    content = [*media, {"type": "text", "text": "Què?"}]
    assert prompt.request.messages == [{"role": "user", "content": content}]
    shapes = [probe(item) for item in prompt.items]
    assert shapes[:2] == [CLIP, ImageShape(18, 8)]
    assert isinstance(shapes[2], VideoShape)
    assert shapes[3] == AudioShape(80, 8000)
    assert names(shard) == ["a/1.jpg", "a/1.right.png", "a/1.mp4", "a/1.wav"]


@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_what_is_measured_skipped_and_text_is_everything(shard: Path, mode: str) -> None:
    tar(shard, *samples(5), ("README.md", b"words"), ("z.png", png(18)), mode=mode)
    taken = count_corpus([ArchiveSource("tar", str(shard))], prober())
    assert {e.shape: e.count for e in taken.census.shapes()} == {CLIP: 5, ImageShape(18, 8): 1}
    assert (taken.prompts.prompts(), taken.files) == (5, 7)
    assert [(s.path, s.reason) for s in taken.skipped] == [
        (f"tar://README.md::{shard}", "not an image, video or audio file (text)")
    ]


@pytest.mark.parametrize("last", [("no-ending", png()), ("a.txt", b"late")], ids=["alone", "late"])
def test_only_neighbours_are_one_sample(shard: Path, last: tuple[str, bytes]) -> None:
    """And files that stand alone are no prompts."""
    tar(shard, ("a.png", png()), ("b.png", png()), last, ("5", png()))
    assert prompts(shard) == []
    assert names(shard) == ["a.png", "b.png", last[0], "5"]


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b'{"caption": "a cat", "width": 3}', "a cat"),
        (b'{"caption": "a cat", "question": "what?", "prompt": 5}', "what?"),
        (b'{"answer": "a cat"}', ""),
        (b'["a cat"]', ""),
        (b'{"text": "\\ud800x"}', "?x"),
        *((no_json, "") for no_json in (b"{", b"[" * 100_000, b"\xff\xfe\xfa", b"")),
    ],
)
def test_text_may_be_a_field_of_json(shard: Path, data: bytes, text: str) -> None:
    """Text by itself goes before it: img2dataset writes the caption into both."""
    tar(shard, ("a.png", png()), ("a.json", data))
    assert [prompt.request.text() for prompt in prompts(shard)] == [text]
    tar(shard, ("a.png", png()), ("a.json", data), ("a.txt", b"a dog"))
    assert [prompt.request.text() for prompt in prompts(shard)] == ["a dog"]


def test_more_text_than_any_context_holds(shard: Path) -> None:
    tar(shard, ("a.png", png()), ("a.txt", b"x" * (1 << 20) + b"x"))
    (refused,) = ArchiveSource("tar", str(shard)).prompts()
    assert refused == Skipped(f"{shard}:a", "text is longer than 1 MiB")
    assert names(shard) == ["a.png"]


def test_content_tells_media_where_the_ending_does_not(shard: Path) -> None:
    tar(shard, ("a.picture", png()), ("a.note", b"words"), ("b.cls", png()), ("b.pyd", b"BM"))
    assert names(shard) == ["a.picture", "b.cls"]
    assert [len(prompt.items) for prompt in prompts(shard)] == [1, 1]


def test_clutter_is_left_out(shard: Path) -> None:
    clutter = ("._a.png", ".git/b.png", "x/.c.png", "__key__", "__meta__/d.png")
    tar(shard, *((name, png()) for name in clutter), ("./a.png", png()), ("__e.png", png()))
    assert names(shard) == ["./a.png", "__e.png"]
    assert skipped(shard) == {}


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_every_format_of_tar(shard: Path, form: int) -> None:
    folder = "d" * 90 if form == tarfile.USTAR_FORMAT else "ü" * 150
    tar(shard, (f"{folder}/a.png", png()), format=form)
    (item,) = items_of(ArchiveSource("tar", str(shard)))
    assert probe(item) == CLIP


@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_a_member_is_opened_with_and_without_what_the_source_knows(shard: Path, mode: str) -> None:
    pictures = {f"{n}.png": png(n) for n in range(1, 5)}
    tar(shard, *pictures.items(), mode=mode)
    items = items_of(ArchiveSource("tar", str(shard)))
    for item, data in [*zip(items, pictures.values(), strict=True), (items[0], png(1))]:
        for known in (item, Item(item.path)):
            with open_item(known) as opened:
                assert (opened.file.read(), opened.size_bytes) == (data, len(data))


@pytest.mark.parametrize(
    "name",
    [
        *("%41.png", "a::b.png", "a:", ":::", "a:::b:", "x%3A.png", "t://x", "50%.png", "/abs"),
        *("../up", "../../up.png", "/etc/a.png", "a/../../b.png"),
        *("\n", "new\nline.png", "\x1b[31m.png"),
    ],
    ids=repr,
)
@pytest.mark.parametrize(("kind", "write"), [("tar", tar), ("zip", zipped)], ids=["tar", "zip"])
def test_a_name_survives_its_location_and_is_no_place(tmp_path: Path, kind, write, name) -> None:
    (tmp_path / "in").mkdir()
    path = write(tmp_path / "in" / f"a.{kind}", (name, png()))
    (item,) = items_of(ArchiveSource(kind, str(path)))
    assert probe(Item(item.path)) == CLIP
    assert sorted(tmp_path.rglob("*")) == [path.parent, path]


def test_an_archive_that_changes_after_it_was_listed(shard: Path) -> None:
    tar(shard, ("a.png", png()), ("b.png", png()))
    first, second = items_of(ArchiveSource("tar", str(shard)))
    tar(shard, ("a.png", png()))
    assert probe(first) == Skipped(first.path, "damaged: the archive changed after it was listed")
    shard.unlink()
    assert probe(second) == Skipped(second.path, "no such file")


def whole(shard: Path) -> bytes:
    return tar(shard, *samples(3)).read_bytes()


@pytest.mark.parametrize(
    ("kept", "items", "texts"),
    [
        # Three samples of two members, each member a block of header and one of data.
        (511, 0, 0),
        (513, 0, 0),
        (1024 + 100, 1, 0),
        (2048 + 530, 1, 0),
        (4096, 2, 1),
        (6144, 3, 2),
    ],
)
def test_a_cut_archive_counts_as_far_as_it_goes(shard, kept: int, items: int, texts: int) -> None:
    """Its last sample, perhaps incomplete, is no prompt."""
    shard.write_bytes(whole(shard)[:kept])
    source = ArchiveSource("tar", str(shard))
    *found, last = source.items()
    assert [isinstance(one, Item) for one in found] == [True] * items
    assert expect(Skipped, last).path == str(shard)
    assert len([p for p in source.prompts() if isinstance(p, Prompt)]) == texts


def test_a_damaged_header_ends_an_archive(shard: Path) -> None:
    data = bytearray(whole(shard))
    data[2 * 1024 + 5] ^= 0xFF
    shard.write_bytes(data)
    assert skipped(shard) == {str(shard): "damaged: bad checksum"}


@pytest.mark.parametrize(
    "data", [b"", png(), gzip.compress(b"words"), b"\x1f\x8b" + bytes(600)], ids=len
)
def test_what_is_no_archive_or_has_no_files(shard: Path, data: bytes) -> None:
    shard.write_bytes(data)
    assert skipped(shard) == {str(shard): "damaged: not a tar archive"}
    assert skipped(tar(shard)) == {str(shard): "the archive is empty"}


def test_links_devices_and_sparse_files_are_skipped(shard: Path) -> None:
    kinds = (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.GNUTYPE_SPARSE)
    headers = [member(f"{n}.png", kind=kind, link="/etc/passwd") for n, kind in enumerate(kinds)]
    shard.write_bytes(blocks(*headers) + END)
    assert skipped(shard) == {f"tar://{n}.png::{shard}": "not a regular file" for n in range(4)}


def test_the_first_member_of_a_name_counts(shard: Path) -> None:
    tar(shard, ("a.png", png(3)), ("a.png", png(5)), ("b.png", png(7)))
    assert names(shard) == ["a.png", "b.png"]
    assert skipped(shard) == {f"tar://a.png::{shard}": "duplicate name in the archive"}
    assert probe(Item(f"tar://a.png::{shard}")) == ImageShape(3, 8)


def test_a_fifo_of_an_archive_s_name(shard: Path) -> None:
    os.mkfifo(shard)
    assert skipped(shard) == {str(shard): "cannot be read: not a regular file"}


@pytest.fixture
def page(tmp_path: Path) -> Path:
    """A zip of one picture."""
    return zipped(tmp_path / "a.zip", ("a.png", png(400, 240)))


def only_of(path: Path) -> Item | Skipped:
    (found,) = ArchiveSource("zip", str(path)).items()
    return found


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_members_are_items_by_name(tmp_path: Path, method: int) -> None:
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w", method) as file:
        file.writestr("b/sound.wav", wav(8000))
        file.writestr("a.png", png(40, 24))
        file.mkdir("b/c")
        file.writestr("__MACOSX/._a.png", b"clutter")
    found = items_of(ArchiveSource("zip", str(path)))
    assert [item.path for item in found] == [f"zip://a.png::{path}", f"zip://b/sound.wav::{path}"]
    assert [probe(item) for item in found] == [ImageShape(40, 24), AudioShape(8000, 16000)]
    assert decode_check(found[1], "audio") is None
    assert Path(local_copy(found[0].path, tmp_path / "copies")).read_bytes() == png(40, 24)


def test_a_damaged_member_is_skipped_and_the_others_are_not(tmp_path: Path) -> None:
    path = zipped(tmp_path / "a.zip", ("a.png", png(99, 99)), ("b.png", png(40, 24)))
    with zipfile.ZipFile(path) as file:
        start = file.getinfo("a.png").header_offset + 30 + len("a.png")
    data = bytearray(path.read_bytes())
    data[start : start + 20] = b"\xff" * 20
    path.write_bytes(data)
    taken = count_corpus([ArchiveSource("zip", str(path))], prober())
    assert [entry.shape for entry in taken.census.shapes()] == [ImageShape(40, 24)]
    assert len(taken.skipped) == 1
    assert taken.skipped[0].reason.startswith("damaged: ")


def test_encrypted_members_are_skipped(page: Path) -> None:
    data = bytearray(page.read_bytes())
    for header, flags in ((b"PK\3\4", 6), (b"PK\1\2", 8)):
        data[data.index(header) + flags] |= 1
    page.write_bytes(data)
    assert "encrypted" in reason(probe(Item(f"zip://a.png::{page}")))


@pytest.mark.parametrize("share", [0.0, 0.4, 0.99])
def test_an_archive_without_its_end_is_skipped(page: Path, share: float) -> None:
    page.write_bytes(page.read_bytes()[: int(page.stat().st_size * share)])
    assert expect(Skipped, only_of(page)).path == str(page)


def test_an_archive_that_went_away_is_skipped(page: Path) -> None:
    item = expect(Item, only_of(page))
    page.unlink()
    assert reason(probe(item)) == reason(only_of(page)) == "no such file"


def test_the_directory_is_read_once_for_many_members(tmp_path: Path) -> None:
    path = zipped(tmp_path / "a.zip", *((f"{n}.png", png(4, 4)) for n in range(5000)))
    started = time.process_time()
    shapes = [probe(item) for item in items_of(ArchiveSource("zip", str(path)))]
    assert shapes == [ImageShape(4, 4)] * 5000
    # To read it takes some 20 ms, and would be done five thousand times.
    assert time.process_time() - started < 10
