"""Buckets whose listings mean harm."""

import itertools
import math
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from mmcalib.census.counter import count_corpus
from mmcalib.corpus import remote as listings
from mmcalib.corpus.remote import RemoteSource
from mmcalib.domain.items import Item, Skipped
from mmcalib.domain.shapes import ImageShape
from mmcalib.errors import CorpusError
from mmcalib.storage.access import open_item
from tests.census.looking import prober
from tests.corpus.listed import reason
from tests.corpus.media import png

fsspec = pytest.importorskip("fsspec")
PICTURE = png(40, 24)
Entry = dict[str, Any]


class Evil(fsspec.AbstractFileSystem):  # type: ignore[misc, name-defined]
    """Lists what it was told to, and has one picture under every name."""

    protocol = "evil"
    cachable = False
    listing: Callable[[str], Any] = staticmethod(lambda path: [])

    def ls(self, path: str, detail: bool = True, **kwargs: object) -> Any:
        return type(self).listing(path)

    def info(self, path: str, **kwargs: object) -> Entry:
        kind = "directory" if path.strip("/") == "bucket" else "file"
        return {"name": path, "type": kind, "size": len(PICTURE)}

    def _open(self, path: str, mode: str = "rb", **kwargs: object) -> Any:
        with fsspec.filesystem("memory").open("/evil/a.png", "wb") as file:
            file.write(PICTURE)
        return fsspec.filesystem("memory").open("/evil/a.png", "rb")


fsspec.register_implementation("evil", Evil, clobber=True)


def listed(monkeypatch: pytest.MonkeyPatch, listing: Callable[[str], Any]) -> Iterator[Any]:
    monkeypatch.setattr(Evil, "listing", staticmethod(listing))
    return RemoteSource("evil://bucket").items()


def only(*entries: Any) -> Callable[[str], Any]:
    return lambda path: list(entries) if path.strip("/") == "bucket" else []


def a_file(name: str, **more: Any) -> Entry:
    return {"name": name, "type": "file", "size": len(PICTURE), **more}


def a_folder(name: str) -> Entry:
    return {"name": name, "type": "directory"}


NAMES = [
    "bucket/../../etc/passwd",
    "/etc/passwd",
    "bucket/a\0b.png",
    "bucket/a\nb.png",
    "bucket/\u202egnp.exe",
    "bucket/\udcff.png",
    "",
    "bucket/" + "a" * 100_000,
    "file:///etc/passwd",
    "http://169.254.169.254/latest",
    "bucket/%2e%2e/a.png",
]


@pytest.mark.parametrize("name", NAMES, ids=[repr(name[:20]) for name in NAMES])
def test_a_name_leads_nowhere_else(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    found = list(listed(monkeypatch, only(a_file("bucket/good.png"), a_file(name))))
    assert len(found) == 2
    assert all(one.path.startswith("evil://") for one in found)
    taken = count_corpus([RemoteSource("evil://bucket")], prober())
    assert taken.census.items() + len(taken.skipped) == 2
    assert [entry.shape for entry in taken.census.shapes()] == [ImageShape(40, 24)]


@pytest.mark.parametrize("ending", ["png", "zip", "tar", "parquet"])
def test_a_name_is_no_archive_behind_another(monkeypatch, tmp_path: Path, ending: str) -> None:
    name = f"bucket/a.png::{tmp_path}/secret.{ending}"
    (found,) = listed(monkeypatch, only(a_file(name)))
    assert "which separates members" in reason(found)


SIZES = [-1, "12", "many", None, 1.5, math.inf, math.nan, [], {}, True, 1 << 200]


@pytest.mark.parametrize("size", SIZES, ids=repr)
def test_a_size_may_be_anything(monkeypatch: pytest.MonkeyPatch, size: object) -> None:
    (found,) = listed(monkeypatch, only(a_file("bucket/a.png", size=size, ETag=["x"])))
    assert isinstance(found, Item)
    assert found.byte_source is None or 0 <= found.byte_source.size_bytes < 1 << 63
    taken = count_corpus([RemoteSource("evil://bucket")], prober(), repeats=True)
    assert taken.census.items() == 1


def test_what_is_no_entry_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    odd = [{}, {"name": "bucket/a"}, {"name": None, "type": "file"}, "bucket/b", None, 7]
    odd += [a_file("bucket/c", type=None), a_file("bucket/d", type=["file"])]
    found = list(listed(monkeypatch, only(*odd, a_file("bucket/good.png"))))
    assert [one.path for one in found if isinstance(one, Item)] == ["evil://bucket/good.png"]


def test_a_key_that_repeats_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    listing = only(*[a_file("bucket/a.png")] * 5)
    assert len(list(listed(monkeypatch, listing))) == 1


@pytest.mark.parametrize(
    ("listing", "leads_back"),
    [
        (lambda path: [a_folder("bucket/a")], True),
        (lambda path: [a_folder("bucket/b/c"), a_folder("bucket/a")], False),
        (lambda path: [a_folder(f"{path}/{name}") for name in "ab"], False),
        (lambda path: [a_folder("bucket"), a_folder(path)], True),
    ],
    ids=["a-loop", "two-in-each-other", "twice-as-many-on-each-level", "the-bucket-in-itself"],
)
def test_folders_without_end_are_left(monkeypatch, listing, leads_back: bool) -> None:
    found: list[Item | Skipped] = []
    with pytest.raises(CorpusError, match="no files below") if leads_back else nullcontext():
        found += itertools.islice(listed(monkeypatch, listing), 20_000)
    assert len(found) < 20_000
    assert all(isinstance(one, Skipped) for one in found)


def test_a_listing_without_end_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listings, "MOST_LISTED", 1000)
    endless = (a_file(f"bucket/{number}.png") for number in itertools.count())
    (found,) = listed(monkeypatch, lambda path: endless)
    assert found == Skipped("evil://bucket", "folder has more than 1,000 names")


def test_a_file_that_does_not_know_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fsspec.implementations.memory.MemoryFile, "size", -5, raising=False)
    with pytest.raises(OSError, match="does not send its size"):
        open_item(Item("evil://bucket/a.png"))
