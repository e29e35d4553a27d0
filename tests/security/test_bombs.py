"""Files of some kilobytes that stand for gigabytes, or for hours of computing."""

from __future__ import annotations

import json
import time
from collections.abc import Generator
from pathlib import Path

import pytest
from PIL import Image

from mmcalib.corpus import archives
from mmcalib.corpus.archives import Apart, archive_at
from mmcalib.corpus.tables import ParquetSource
from mmcalib.domain.items import Item, Skipped
from mmcalib.options.run import ProbeOptions
from mmcalib.progress import Silent
from mmcalib.workflows.corpus import read
from tests.corpus.media import png
from tests.e2e.command import environment
from tests.security import tables
from tests.security.bombs import MIB, slow_jpeg, spent
from tests.security.test_working_folder import CALIBRATION

GB = 1_000_000_000


def test_a_table_that_lies_about_what_it_unpacks_to(tmp_path: Path) -> None:
    """Whatever a table says, the process that reads it gets no more than its share; the rest of the
    corpus is read.
    """
    path = tables.repeated(tmp_path / "t.parquet", png(40, 24), 60_000_000, 8, tables.plain)
    source = Apart(ParquetSource(str(path)), str(path), memory_bytes=130 << 20)
    (found,) = source.items()
    assert isinstance(found, Skipped)
    assert found.path == str(path)
    archives.end_readers()


def test_a_table_that_takes_for_ever_costs_its_silence(tmp_path: Path) -> None:
    path = tables.repeated(tmp_path / "t.parquet", png(40, 24), 50_000_000, 99, tables.plain)
    source = Apart(ParquetSource(str(path)), str(path), silence_s=0.01)
    assert list(source.items()) == [Skipped(str(path), "a decoder took more than 0.01 s")]


def test_many_tables_are_read_by_one_process(tmp_path: Path) -> None:
    for number in range(3):
        tables.written(tmp_path / f"{number}.parquet", [png(40 + number, 24)])
        source = archive_at(str(tmp_path / f"{number}.parquet"))
        assert source is not None
        (found,) = source.items()
        assert isinstance(found, Item)
    assert len(archives._IDLE) == 1
    archives.end_readers()
    assert archives._IDLE == []


def test_a_reader_that_is_left_early_is_ended(tmp_path: Path) -> None:
    path = tables.written(tmp_path / "t.parquet", [png(40, 24)] * 200)
    items = Apart(ParquetSource(str(path)), str(path)).items()
    assert isinstance(items, Generator)
    next(items)
    items.close()
    assert archives._IDLE == []


@pytest.mark.slow
def test_a_picture_that_takes_minutes_to_decode(tmp_path: Path) -> None:
    """Its header is good; decoded, as the first files of a corpus are, it costs one timeout."""
    data = tmp_path / "data"
    slow_jpeg(data / "slow.jpg", 12_000, 2000)
    Image.new("RGB", (64, 48)).save(data / "good.png")
    began = time.monotonic()
    corpus = read(
        [data],
        [],
        allowed_root=None,
        cache=tmp_path / "cache",
        progress=Silent(),
        how=ProbeOptions(item_timeout_s=8),
    )
    assert corpus.census.items() == 1
    (skipped,) = corpus.skipped
    assert skipped == Skipped(str(data / "slow.jpg"), "a decoder took more than 8 s")
    # A busy machine may not tell that it was computing all the time, and try it again.
    assert time.monotonic() - began < 4 * 8


@pytest.mark.slow
def test_a_picture_that_takes_minutes_to_draw(tmp_path: Path) -> None:
    """It is the costliest of a corpus; its picture is given up, and the report written."""
    slow = slow_jpeg(tmp_path / "data" / "slow.jpg", 12_000, 2000)
    assert slow.stat().st_size < 2 * MIB
    found = json.loads(CALIBRATION.read_text())
    for part in found["costs"]["modalities"].values():
        for known in part["known"]:
            known["exemplar"] = str(slow)
    (tmp_path / "calibration.json").write_text(json.dumps(found))
    words = ("report", tmp_path, "--data", slow.parent)
    took = spent(*words, env=environment(tmp_path / "cache"))
    assert took.code == 0, took.err
    assert "data:image" not in (tmp_path / "report.html").read_text()
    assert took.most_bytes < GB
    assert took.seconds < 60
