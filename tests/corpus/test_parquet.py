"""Parquet tables of media, as `datasets` and others write them."""

from pathlib import Path
from typing import Any, cast

import pytest

from mmcalib.census.counter import count_corpus
from mmcalib.corpus import tables
from mmcalib.corpus.chat import url_part
from mmcalib.corpus.tables import ParquetSource
from mmcalib.domain.items import Item, Skipped
from mmcalib.domain.shapes import AudioShape, ImageShape
from mmcalib.media.probe import probe
from tests.builders import expect, some
from tests.census.looking import prober
from tests.corpus.listed import items_of, prompts_of, reason, width
from tests.corpus.media import png, wav

pa = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")


def table(folder: Path, columns: dict[str, Any], **options: Any) -> str:
    path = folder / "t.parquet"
    parquet.write_table(pa.table(columns), path, **options)
    return str(path)


def cell(width: int, path: str | None = None) -> dict[str, object]:
    return {"bytes": png(width, 24), "path": path}


def test_a_cell_of_bytes_and_path_is_an_item(tmp_path: Path) -> None:
    path = table(tmp_path, {"id": [1, 2], "image": [cell(40, "a.png"), cell(41)]})
    found = items_of(ParquetSource(path))
    assert [item.path for item in found] == [f"parquet://{row}/image::{path}" for row in (0, 1)]
    assert [probe(item) for item in found] == [ImageShape(40, 24), ImageShape(41, 24)]
    assert list(ParquetSource(path).prompts()) == []


def test_a_list_of_cells_is_an_item_each(tmp_path: Path) -> None:
    path = table(tmp_path, {"images": [[cell(40), cell(41)], [], [], [cell(42)]]})
    found = list(ParquetSource(path).items())
    places = [item.path.removeprefix("parquet://").partition("::")[0] for item in found]
    assert places == ["0/images/0", "0/images/1", "3/images/0"]
    assert [width(Item(item.path)) for item in found] == [40, 41, 42]
    prompts = prompts_of(ParquetSource(path))
    assert [[*map(width, prompt.items)] for prompt in prompts] == [[40, 41], [42]]
    assert {prompt.request.text() for prompt in prompts} == {""}


@pytest.mark.parametrize(
    ("name", "turns"),
    [
        ("messages", [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Oh"}]),
        ("conversations", [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Oh"}]),
        ("texts", [{"user": "Hi", "assistant": "Oh"}]),
        ("Messages", [{"role": "user", "content": [{"type": "text", "text": "HiOh"}]}]),
    ],
)
def test_turns_are_the_text_of_their_row(tmp_path: Path, name: str, turns: list[Any]) -> None:
    path = table(tmp_path, {"images": [[cell(40), cell(41)], None], name: [turns, turns]})
    prompts = prompts_of(ParquetSource(path))
    assert [len(prompt.items) for prompt in prompts] == [2, 0]
    assert ["".join(prompt.request.text().split()) for prompt in prompts] == ["HiOh"] * 2


def test_strings_of_some_names_are_paths(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(png(40, 24))
    names = ["a.png", "size:64x32", "none.png", "/etc/passwd"]
    (first,) = prompts_of(ParquetSource(table(tmp_path, {"images": [names[:2]]})))
    assert [*map(probe, first.items)] == [ImageShape(40, 24), ImageShape(64, 32)]
    path = table(tmp_path, {"Image_path": names, "id": ["a.png"] * 4})
    image, size, *others = ParquetSource(path).items()
    assert [*map(width, (expect(Item, image), expect(Item, size)))] == [40, 64]
    beside = table(tmp_path, {"image": [cell(50)], "file_name": ["a.png"], "text": ["x"]})
    assert [*map(width, items_of(ParquetSource(beside)))] == [50]
    whose = f"outside the table's folder: named in {path}"
    assert [*map(reason, others)] == ["no such file", whose]


def test_cells_of_neither_bytes_nor_path_are_named(tmp_path: Path) -> None:
    sound = {"array": [0.5, 0.25], "path": None, "sampling_rate": 16_000}
    hashes = table(tmp_path, {"hash": [b"\1"], "image": [None], "text": ["x"]})
    assert list(ParquetSource(hashes).items()) == []
    path = table(tmp_path, {"audio": [sound, None]})
    assert [*map(reason, ParquetSource(path).items())] == [
        "no cell of its row has bytes or a path of media",
        "missing: no image, video or audio",
    ]


def test_a_binary_column_counts_when_its_first_value_is_media(tmp_path: Path) -> None:
    columns = {"hash": [b"\1\2\3", b"\4"], "jpg": [None, png(40, 24)], "mixed": [png(41, 24), b"?"]}
    path = table(tmp_path, columns)
    taken = count_corpus([ParquetSource(path)], prober())
    assert [entry.shape for entry in taken.census.shapes()] == [
        ImageShape(width, 24) for width in (40, 41)
    ]
    assert [skipped.path for skipped in taken.skipped] == [f"parquet://1/mixed::{path}"]


def test_a_column_of_words_makes_each_row_a_prompt(tmp_path: Path) -> None:
    columns = {
        "question": ["What?", None],
        "sound": [{"bytes": wav(8000), "path": "a.wav"}, None],
        "image": [cell(40), cell(41)],
        "answer": ["That.", "This."],
    }
    path = table(tmp_path, columns)
    first, second = prompts_of(ParquetSource(path))
    assert first.origin == f"{path}:0"
    assert first.request.text() == "What?"
    assert [probe(item) for item in first.items] == [AudioShape(8000, 16000), ImageShape(40, 24)]
    sound, image = f"parquet://0/sound::{path}", f"parquet://0/image::{path}"
    parts = [url_part("audio_url", sound), url_part("image_url", image)]
    content = [*parts, {"type": "text", "text": "What?"}]
    assert first.request.messages == [{"role": "user", "content": content}]
    assert (second.request.text(), len(second.items)) == ("", 1)


def test_a_path_without_bytes_is_asked_for_as_what_its_name_says(tmp_path: Path) -> None:
    sizes = ["size:sample_rate_hz=16000,45s", "size:64x64,num_frames=8,fps=2,4s"]
    names = ["a.mp3", "a.mp4", "a.png", "a", *sizes]
    for name in names:
        (tmp_path / name).write_bytes(b"")
    cells = [{"bytes": None, "path": name} for name in names]
    (prompt,) = prompts_of(ParquetSource(table(tmp_path, {"text": ["a"], "media": [cells]})))
    *media, _ = cast(list[dict[str, object]], prompt.request.messages[0]["content"])
    kinds = ["audio_url", "video_url", "image_url", "image_url", "audio_url", "video_url"]
    assert [part["type"] for part in media] == kinds


def test_a_wrong_size_is_skipped_with_its_own_reason(tmp_path: Path) -> None:
    path = table(tmp_path, {"text": ["a"], "media": [{"bytes": None, "path": "size:64fps"}]})
    found = [*ParquetSource(path).items(), *ParquetSource(path).prompts()]
    places = [reason(one).partition("not a size: write size:")[0] for one in found]
    assert places == ["", f"size:64fps#{path}:0/media: "]


def test_large_media_are_read_again_where_they_are_needed(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(tables, "MOST_SENT_BYTES", 10)
    path = table(tmp_path, {"image": [cell(40 + n) for n in range(40)]}, row_group_size=7)
    found = items_of(ParquetSource(path))
    assert some(found[0].byte_source).data is None
    assert [width(item) for item in reversed(found)] == [79 - n for n in range(40)]
    assert [width(item) for item in found] == [40 + n for n in range(40)]


def test_columns_of_odd_names(tmp_path: Path) -> None:
    path = table(tmp_path, {"a/0": [cell(40)], "a": [[cell(41)]], "b::c": [cell(42)]})
    found = list(ParquetSource(path).items())
    assert [width(Item(item.path)) for item in found] == [40, 41, 42]


def test_a_path_without_bytes_is_a_file_beside_the_table(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.png").write_bytes(png(40, 24))
    (tmp_path / "out.png").write_bytes(png(41, 24))
    named = ["a.png", "../out.png", "none.png", "https://example.com/a.png", None, "\0"]
    path = table(tmp_path / "in", {"image": [{"bytes": None, "path": name} for name in named]})
    found = list(ParquetSource(path).items())
    assert found[0] == Item(str(tmp_path / "in" / "a.png"))
    assert [reason(one) for one in found[1:]] == [
        f"outside the table's folder: named in {path}",
        "no such file",
        f"not a local file: named in {path}",
        "missing: no image, video or audio",
        f"not a local file: named in {path}",
    ]


@pytest.mark.parametrize("share", [0.0, 0.3, 0.95])
def test_a_cut_table_is_skipped(tmp_path: Path, share: float) -> None:
    path = Path(table(tmp_path, {"image": [cell(40)]}))
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
    (found,) = ParquetSource(str(path)).items()
    assert expect(Skipped, found).path == str(path)
    assert list(ParquetSource(str(path)).prompts()) == []


def test_damaged_pages_cost_the_rest_of_the_table(tmp_path: Path) -> None:
    images = [cell(40 + n) for n in range(30)]
    options = {"compression": "gzip", "row_group_size": 10, "use_dictionary": False}
    path = Path(table(tmp_path, {"image": images}, **options))
    start = parquet.ParquetFile(path).metadata.row_group(2).column(0).data_page_offset
    data = bytearray(path.read_bytes())
    data[start : start + 60] = b"\xff" * 60
    path.write_bytes(data)
    taken = count_corpus([ParquetSource(str(path))], prober())
    assert taken.census.items() >= 16
    assert [skipped.path for skipped in taken.skipped] == [str(path)]


def test_a_table_without_media_is_skipped(tmp_path: Path) -> None:
    path = table(tmp_path, {"text": ["a"], "n": [1]})
    assert list(ParquetSource(path).items()) == [
        Skipped(path, "the table has no media column, only text, n")
    ]


def test_a_text_that_is_none_costs_its_row(tmp_path: Path) -> None:
    texts = pa.array([b"a", b"\xed\xa0\x80", b"c"]).view(pa.string())
    path = table(tmp_path, {"text": texts, "image": [cell(40), cell(41), cell(42)]})
    source = ParquetSource(path)
    assert [prompt.request.text() for prompt in prompts_of(source)] == ["a", "c"]
    found = list(source.items())
    assert found[1] == Skipped(f"{path}:1", "text is not UTF-8")
    assert [width(one) for one in (found[0], found[2]) if isinstance(one, Item)] == [40, 42]
