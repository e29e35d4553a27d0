"""Datasets by the library that reads them, from folders on this disk."""

import json
from pathlib import Path

import pytest

from mmcalib.census.counter import count_corpus
from mmcalib.corpus.resolve import find_sources
from mmcalib.corpus.tables import HfDatasetSource
from mmcalib.domain.items import Item, Skipped
from mmcalib.domain.shapes import ImageShape
from mmcalib.errors import CorpusError, UsageError
from mmcalib.media.probe import probe
from mmcalib.storage.access import local_copy
from tests.census.looking import prober
from tests.corpus.listed import items_of, prompts_of, width
from tests.corpus.media import png

datasets = pytest.importorskip("datasets")
arrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")


@pytest.fixture(autouse=True)
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(datasets.config, "HF_DATASETS_OFFLINE", True)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    train = tmp_path / "images" / "train"
    train.mkdir(parents=True)
    for number in range(3):
        (train / f"{number}.png").write_bytes(png(40 + number, 24))
    return tmp_path / "images"


def test_metadata_with_words_makes_prompts(folder: Path) -> None:
    lines = [{"file_name": f"{n}.png", "text": f"What is {n}?"} for n in range(3)]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / "train" / "metadata.jsonl").write_text(text)
    source = HfDatasetSource(f"hf-dataset://imagefolder?data_dir={folder}")
    first = prompts_of(source)[0]
    assert first.request.text() == "What is 0?"
    assert first.items == (Item(str(folder / "train" / "0.png")),)
    taken = count_corpus([source], prober())
    assert (taken.prompts.prompts(), taken.census.items(), taken.skipped) == (3, 3, [])


def test_a_table_streams_its_bytes(tmp_path: Path) -> None:
    images = [{"bytes": png(40 + n, 24), "path": None} for n in range(3)]
    features = datasets.Features({"image": datasets.Image()})
    made = datasets.Dataset.from_dict({"image": images}, features=features)
    made.to_parquet(str(tmp_path / "t.parquet"))
    found = items_of(HfDatasetSource(f"hf-dataset://parquet?data_files={tmp_path}/t.parquet"))
    assert found[1].path.startswith("hf-dataset://1/image::hf-dataset://parquet?")
    assert [width(item) for item in found] == [40, 41, 42]
    assert probe(Item(local_copy(found[2].path, tmp_path / "copies"))) == ImageShape(42, 24)


def test_a_saved_dataset_is_read_from_its_folder(tmp_path: Path) -> None:
    images = [[{"bytes": png(40 + n, 24), "path": None}] * n for n in (1, 2)]
    features = datasets.Features({"images": datasets.Sequence(datasets.Image())})
    made = datasets.Dataset.from_dict({"images": images}, features=features)
    made.save_to_disk(tmp_path / "one")
    datasets.DatasetDict({"train": made, "test": made}).save_to_disk(tmp_path / "splits")
    for data in (
        tmp_path / "one",
        str(tmp_path / "splits"),
        f"hf-dataset://{tmp_path}/splits?split=test",
    ):
        (source,) = find_sources(data)
        prompts = prompts_of(source)
        assert [[*map(width, prompt.items)] for prompt in prompts] == [[41], [42, 42]]
    with pytest.raises(CorpusError, match="no split dev, only train, test"):
        list(HfDatasetSource(f"hf-dataset://{tmp_path}/splits?split=dev").items())


def test_a_dataset_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="cannot open hf-dataset://imagefolder"):
        list(HfDatasetSource(f"hf-dataset://imagefolder?data_dir={tmp_path}/none").items())


@pytest.mark.parametrize("url", ["hf-dataset://", "hf-dataset://a?splt=train"])
def test_a_url_that_cannot_be_meant(url: str) -> None:
    with pytest.raises(UsageError):
        HfDatasetSource(url)


def test_rows_name_no_file_outside_the_dataset(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "secret.png").write_bytes(png(7, 7))
    paths = [
        str(tmp_path / "secret.png"),
        "http://169.254.169.254/latest/a.png",
        "zip://a.png::/etc/secret.zip",
        f"file://{tmp_path}/secret.png",
    ]
    kind = arrow.struct([("bytes", arrow.binary()), ("path", arrow.string())])
    rows = arrow.array([{"bytes": None, "path": path} for path in paths], kind)
    parquet.write_table(arrow.table({"image": rows}), folder / "t.parquet")
    listed = list(HfDatasetSource(f"hf-dataset://parquet?data_files={folder}/t.parquet").items())
    assert len(listed) == len(paths)
    for found in listed:
        assert isinstance(found, Skipped)
        assert found.reason.startswith(("outside the data set's folder: ", "on another host: "))


def test_rows_of_a_file_in_the_root_name_files_below_it(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(png(7, 7))
    source = HfDatasetSource("hf-dataset://parquet?data_files=/t.parquet")
    assert source._resolve_path(f"{tmp_path}/a.png") == Item(f"{tmp_path}/a.png")
