"""`mmcalib.filter`: of a dataset those samples that fit, and nothing decoded."""

import logging
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import mmcalib
from mmcalib.errors import CorpusError
from mmcalib.gate.admission import Admission, reject
from mmcalib.results.check import ReasonCounts
from tests.corpus.media import asking, png
from tests.programs import run_python
from tests.report.example import calibration

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


def test_series_stay_series_and_arrays_are_pictures_as_vllm_reads_them() -> None:
    pandas = pytest.importorskip("pandas")
    last = [np.zeros((*size[::-1], 3), np.uint8) for size in SIZES]
    for pixels in (pictures(), last, [one.transpose(2, 0, 1) for one in last]):
        kept = mmcalib.filter(pandas.Series(pixels, index=list("abcd")), calibration())
        assert list(kept.index) == ["a", "c"]


def totals(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.message for one in caplog.records if one.levelno >= logging.WARNING]


def test_what_was_dropped_is_summed_up_once_by_reason(caplog: pytest.LogCaptureFixture) -> None:
    slim = Image.new("RGB", (2, 600)), Image.new("RGB", (1, 300)), Image.new("RGB", (900, 2))
    samples = ["gone.png", *slim, None, *pictures()[:1], "gone.jpg", None]
    assert mmcalib.filter(samples, calibration()) == pictures()[:1]
    (said,) = totals(caplog)
    assert said == (
        "mmcalib.filter dropped 7 of 8: "
        "3 × aspect ratio 300 to 450:1, the processor takes at most 200:1; "
        "2 × no such file; 2 × missing: no image, video or audio"
    )
    caplog.clear()
    lazy = mmcalib.filter(iter(samples), calibration())
    assert next(lazy).size == FITS
    assert totals(caplog) == []
    assert list(lazy) == []
    assert totals(caplog) == [said]
    caplog.clear()
    mmcalib.filter(pictures()[:1], calibration())
    assert totals(caplog) == []


def test_what_cannot_be_read_is_raised_where_that_is_asked_for(tmp_path: Path) -> None:
    """A picture that is too large was read: it is dropped all the same."""
    (tmp_path / "torn.png").write_bytes(png(*FITS)[:20])
    for sample, says in (
        ("gone.png", "gone.png: no such file"),
        (tmp_path / "torn.png", f"{tmp_path / 'torn.png'}: damaged"),
        (None, "sample 1: missing: no image, video or audio"),
    ):
        assert mmcalib.filter([sample], calibration()) == []
        with pytest.raises(CorpusError) as caught:
            mmcalib.filter([Image.new("RGB", SLIM), sample], calibration(), errors="raise")
        assert caught.value.message.startswith(says)
    with pytest.raises(ValueError, match="errors must be 'drop' or 'raise'"):
        mmcalib.filter([], calibration(), errors="ignore")  # type: ignore[arg-type]


def image_of(row: Any) -> Any:
    return row["image"]


def test_tables_of_arrow_stay_such() -> None:
    arrow = pytest.importorskip("pyarrow")
    rows = [{"image": {"bytes": png(*size), "path": None}, "n": n} for n, size in enumerate(SIZES)]
    table = arrow.Table.from_pylist(rows * 40)
    kept = mmcalib.filter(table, calibration(), key=image_of)
    assert isinstance(kept, arrow.Table)
    assert kept.schema == table.schema
    assert kept["n"].to_pylist() == KEPT * 40
    (batch, *_) = table.slice(0, len(rows)).to_batches()
    batch = mmcalib.filter(batch, calibration(), key=image_of)
    assert isinstance(batch, arrow.RecordBatch)
    assert batch["n"].to_pylist() == KEPT
    assert mmcalib.filter(table.slice(1, 1), calibration(), key=image_of).num_rows == 0


@pytest.mark.parametrize("dataset", [None, 7, "folder", b"bytes", Path("folder"), {"image": 1}])
def test_what_is_no_dataset_is_a_type_error(dataset: Any) -> None:
    with pytest.raises(TypeError, match=r"mmcalib\.filter takes a dataset of Hugging Face"):
        mmcalib.filter(dataset, calibration())


def test_hf_datasets_stay_such_and_are_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")
    image, number = datasets.Image(), datasets.Value("int32")
    features = datasets.Features({"image": image, "more": datasets.List(image), "n": number})
    more = [{"bytes": png(*FITS)}]
    rows = [{"image": {"bytes": png(*one)}, "more": more, "n": n} for n, one in enumerate(SIZES)]
    whole = datasets.Dataset.from_list(rows, features=features)
    with monkeypatch.context() as patch:
        patch.setattr(datasets.Image, "decode_example", None)
        kept = mmcalib.filter(whole, calibration(), key=image_of)
    assert isinstance(kept, datasets.Dataset)
    assert kept.features == whole.features
    assert kept["n"] == KEPT
    assert isinstance(kept[0]["image"], Image.Image)
    lazy = mmcalib.filter(whole.to_iterable_dataset(), calibration(), key=image_of)
    assert isinstance(lazy, datasets.IterableDataset)
    assert [row["n"] for row in lazy] == KEPT
    assert all(isinstance(row["image"], Image.Image) for row in lazy)
    splits = mmcalib.filter(datasets.DatasetDict(train=whole), calibration(), key=image_of)
    assert splits["train"]["n"] == KEPT


def test_a_data_frame() -> None:
    frame = pytest.importorskip("pandas").DataFrame({"image": pictures(), "n": range(4)})
    assert list(mmcalib.filter(frame, calibration(), key=image_of)["n"]) == KEPT


RAY = """
import os, sys
import ray, ray.data
import mmcalib

ray.init(num_cpus=2, include_dashboard=False, logging_level="ERROR")
ray.data.DataContext.get_current().enable_progress_bars = False
calibration = mmcalib.Calibration.load(sys.argv[1])
rows = ray.data.read_images(sys.argv[2], include_paths=True)
kept = mmcalib.filter(rows, calibration, key=lambda row: row["path"])
assert isinstance(kept, ray.data.Dataset), kept
print(sorted(os.path.basename(row["path"]) for row in kept.take_all()))
"""


@pytest.mark.slow
def test_ray_data(tmp_path: Path) -> None:
    pytest.importorskip("ray.data")
    calibration().save(tmp_path / "calibration.json")
    (tmp_path / "pictures").mkdir()
    for number, size in enumerate(SIZES):
        (tmp_path / "pictures" / f"{number}.png").write_bytes(png(*size))
    done = run_python("-c", RAY, str(tmp_path / "calibration.json"), str(tmp_path / "pictures"))
    assert done.stdout == "['0.png', '2.png']\n", done.stderr


def test_key_says_what_of_a_sample_is_asked_about() -> None:
    samples = list(enumerate(pictures()))
    kept = mmcalib.filter(samples, calibration(), key=lambda sample: sample[1])
    assert [number for number, _ in kept] == KEPT
    with pytest.raises(TypeError, match=r"cannot check tuple; mmcalib takes a path, a URL"):
        mmcalib.filter(samples, calibration())
    with pytest.raises(TypeError) as caught:
        mmcalib.filter([*pictures(), 7], calibration())
    assert caught.value.__notes__ == ["sample 4; key=... names the item of each sample"]


def test_requests_name_files_below_a_folder(tmp_path: Path) -> None:
    requests = []
    for size in (FITS, SLIM):
        path = tmp_path / f"{size}.png"
        path.write_bytes(png(*size))
        requests.append(asking(path.as_uri()))
    kept = mmcalib.filter(requests, calibration(), allowed_local_media_path=tmp_path)
    assert kept == requests[:1]
    assert mmcalib.filter(requests, calibration()) == []
    answer = calibration().admits(requests[0])
    folder = os.path.realpath(".")
    assert answer.reason == f"outside the allowed folder {folder}: {tmp_path}/{FITS}.png"
    assert answer.remedy == "name its folder: --allowed-local-media-path DIR"
    assert answer.answer == "unknown"


def test_what_is_dropped_is_told(caplog: pytest.LogCaptureFixture) -> None:
    dropped: list[tuple[Any, Admission]] = []
    mmcalib.filter(pictures(), calibration(), on_drop=lambda *told: dropped.append(told))
    assert [(sample.size, answer.answer) for sample, answer in dropped] == [(SLIM, "no")] * 2
    caplog.clear()
    with caplog.at_level(logging.INFO, logger="mmcalib.filter"):
        mmcalib.filter(pictures(), calibration())
    assert [record.message[:9] for record in caplog.records[:-1]] == ["dropped: "] * 2


def test_the_numbers_of_one_reason_are_a_range() -> None:
    counts = ReasonCounts()
    for rate in ("8,001", "21,739", "900.5"):
        counts.add("item", reject(f"audio at {rate} Hz takes 3 GiB"))
    (one,) = counts.largest_first()
    assert one.reason == "audio at 900.5 to 21,739 Hz takes 3 GiB"


def test_unknown_is_dropped_unless_allowed() -> None:
    away = ["https://example.com/a.png"]
    assert mmcalib.filter(away, calibration()) == []
    assert mmcalib.filter(away, calibration(), allow_unknown=True) == away
