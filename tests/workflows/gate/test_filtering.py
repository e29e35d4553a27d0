"""`mmcalib.filter`: of a dataset of any library those samples that fit, and nothing decoded."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import mmcalib
from mmcalib.derive.admission import Admission
from tests.corpus.tars import tar
from tests.report.example import calibration
from tests.report.test_presented import png

FITS, SLIM = (1316, 756), (2, 900)
SIZES = [FITS, SLIM, (56, 56), SLIM]
KEPT = [0, 2]


def pictures() -> list[Image.Image]:
    return [Image.new("RGB", size) for size in SIZES]


def test_lists_stay_lists_and_iterators_lazy() -> None:
    samples = pictures()
    kept = mmcalib.filter(samples, calibration())
    assert kept == [samples[number] for number in KEPT]
    seen: list[int] = []

    def source() -> Any:
        for number, picture in enumerate(samples):
            seen.append(number)
            yield picture

    lazy = mmcalib.filter(source(), calibration())
    assert seen == []
    assert next(lazy) is samples[0]
    assert seen == [0]


def test_key_says_what_of_a_sample_is_asked_about() -> None:
    samples = list(enumerate(pictures()))
    kept = mmcalib.filter(samples, calibration(), key=lambda sample: sample[1])
    assert [number for number, _ in kept] == KEPT
    with pytest.raises(TypeError, match=r"this is tuple; mmcalib takes a path, a URL"):
        mmcalib.filter(samples, calibration())


def test_what_is_dropped_is_told(caplog: pytest.LogCaptureFixture) -> None:
    dropped: list[tuple[Any, Admission]] = []
    mmcalib.filter(pictures(), calibration(), on_drop=lambda *told: dropped.append(told))
    assert [(sample.size, answer.answer) for sample, answer in dropped] == [(SLIM, "no")] * 2
    with caplog.at_level(logging.INFO, logger="mmcalib.filter"):
        mmcalib.filter(pictures(), calibration())
    assert [record.message[:9] for record in caplog.records] == ["dropped: "] * 2


def test_unknown_is_dropped_unless_allowed() -> None:
    away = ["https://example.com/a.png"]
    assert mmcalib.filter(away, calibration()) == []
    assert mmcalib.filter(away, calibration(), allow_unknown=True) == away


@pytest.mark.parametrize("dataset", [None, 7, "folder", b"bytes", Path("folder"), {"image": 1}])
def test_what_is_no_dataset_is_a_type_error(dataset: Any) -> None:
    with pytest.raises(TypeError, match=r"mmcalib\.filter takes a dataset of Hugging Face"):
        mmcalib.filter(dataset, calibration())


def test_hf_datasets_stay_such_and_are_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")
    features = datasets.Features(
        {
            "image": datasets.Image(),
            "more": datasets.List(datasets.Image()),
            "n": datasets.Value("int32"),
        }
    )
    rows = [
        {"image": {"bytes": png(size), "path": None}, "more": [{"bytes": png(FITS)}], "n": number}
        for number, size in enumerate(SIZES)
    ]
    whole = datasets.Dataset.from_list(rows, features=features)
    with monkeypatch.context() as patch:
        patch.setattr(datasets.Image, "decode_example", None)
        kept = mmcalib.filter(whole, calibration())
    assert isinstance(kept, datasets.Dataset)
    assert kept.features == whole.features
    assert kept["n"] == KEPT
    assert isinstance(kept[0]["image"], Image.Image)
    lazy = mmcalib.filter(whole.to_iterable_dataset(), calibration())
    assert isinstance(lazy, datasets.IterableDataset)
    assert [row["n"] for row in lazy] == KEPT
    assert all(isinstance(row["image"], Image.Image) for row in lazy)
    splits = mmcalib.filter(datasets.DatasetDict(train=whole), calibration())
    assert splits["train"]["n"] == KEPT


def test_a_data_frame() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"image": pictures(), "n": range(4)})
    assert list(mmcalib.filter(frame, calibration())["n"]) == KEPT


def test_datasets_of_torch() -> None:
    pytest.importorskip("torch")
    from torch.utils.data import DataLoader, Dataset, IterableDataset

    class Pages(Dataset[Any]):  # type: ignore[misc]
        def __len__(self) -> int:
            return len(SIZES)

        def __getitem__(self, number: int) -> Any:
            return {"image": np.zeros((*SIZES[number][::-1], 3), np.uint8), "n": number}

    class Stream(IterableDataset[Any]):  # type: ignore[misc]
        def __iter__(self) -> Any:
            return (Pages()[number] for number in range(len(SIZES)))

    kept = mmcalib.filter(Pages(), calibration())
    loader = DataLoader(kept, batch_size=None)
    assert [sample["n"] for sample in loader] == KEPT
    stream = mmcalib.filter(Stream(), calibration())
    for workers in (0, 1):
        loader = DataLoader(stream, batch_size=None, num_workers=workers)
        assert [sample["n"] for sample in loader] == KEPT
    with pytest.raises(TypeError, match="filter the dataset below it"):
        mmcalib.filter(loader, calibration())


def test_webdataset(tmp_path: Path) -> None:
    webdataset = pytest.importorskip("webdataset", reason="webdataset is not installed")
    members = [(f"{number}.png", png(size)) for number, size in enumerate(SIZES)]
    tar(tmp_path / "0000.tar", *members)
    whole = webdataset.WebDataset(str(tmp_path / "0000.tar"), shardshuffle=False)
    kept = mmcalib.filter(whole, calibration())
    assert [int(sample["__key__"]) for sample in kept] == KEPT
    assert [int(sample["__key__"]) for sample in kept] == KEPT, "as often as one likes"
    decoded = mmcalib.filter(whole.decode("pil"), calibration())
    assert [int(sample["__key__"]) for sample in decoded] == KEPT


RAY = """
import os, sys
import numpy as np
import ray, ray.data
import mmcalib

ray.init(num_cpus=2, include_dashboard=False, logging_level="ERROR")
ray.data.DataContext.get_current().enable_progress_bars = False
calibration = mmcalib.Calibration.load(sys.argv[1])
rows = ray.data.read_images(sys.argv[2], include_paths=True)
kept = mmcalib.filter(rows, calibration)
assert isinstance(kept, ray.data.Dataset), kept
print(sorted(os.path.basename(row["path"]) for row in kept.take_all()))
"""


@pytest.mark.slow
def test_ray_data(tmp_path: Path) -> None:
    pytest.importorskip("ray.data")
    calibration().save(tmp_path / "calibration.json")
    (tmp_path / "pictures").mkdir()
    for number, size in enumerate(SIZES):
        (tmp_path / "pictures" / f"{number}.png").write_bytes(png(size))
    words = [str(tmp_path / "calibration.json"), str(tmp_path / "pictures")]
    done = subprocess.run([sys.executable, "-c", RAY, *words], capture_output=True, text=True)
    assert done.stdout == "['0.png', '2.png']\n", done.stderr
