"""Archives that mean harm: each costs itself, within the memory and time of one process."""

import gzip
import json
import struct
import tarfile
import time
import zlib
from collections.abc import Callable, Generator, Sequence
from pathlib import Path

import pytest
from PIL import Image

from mmcalib.corpus import archives
from mmcalib.corpus.archives import ArchiveSource, SubprocessSource, archive_source
from mmcalib.corpus.tables import ParquetSource
from mmcalib.domain.items import Item, Skipped
from mmcalib.options.run import ProbeOptions
from mmcalib.progress import Silent
from mmcalib.workflows.corpus import read_corpus
from tests.builders import expect, some
from tests.corpus.listed import items_of, reason
from tests.corpus.tars import END, member, png, tar, zipped
from tests.schemas import CALIBRATION
from tests.security.bombs import MIB, slow_jpeg, spent, zip_bomb

SILENCE_S = 5.0


def header(kind: bytes, data: bytes, name: str = "x") -> bytes:
    return member(name, len(data), kind).tobuf(tarfile.GNU_FORMAT) + data + bytes(-len(data) % 512)


def record(key: str, value: str = "v") -> bytes:
    rest = f" {key}={value}\n"
    return f"{len(rest) + len(str(len(rest) + len(str(len(rest)))))}{rest}".encode()


def fields(count: int, start: int = 0) -> bytes:
    return b"".join(record(f"k{number}") for number in range(start, start + count))


X, G = tarfile.XHDTYPE, tarfile.XGLTYPE

NEW_SPARSE = b"".join(
    record(f"GNU.sparse.{key}", value)
    for key, value in (("major", "1"), ("minor", "0"), ("name", "x"))
)

# Behind a good member of each.
HEADERS: dict[str, bytes] = {
    "a number without end": header(X, b"1" * MIB),
    "global fields, copied for each member": b"".join(
        header(G, fields(500, 500 * n)) + header(tarfile.REGTYPE, b"", f"{n}") for n in range(400)
    ),
    "headers of headers": header(X, record("a", "a" * (MIB // 4))) * 2000,
    "a count of holes without end": (
        header(X, NEW_SPARSE) + header(tarfile.REGTYPE, b"5\n" + b"9" * (64 * MIB))
    ),
    "a size that is no number": member("x", 1 << 60).tobuf(tarfile.GNU_FORMAT),
    "a size that leads back": member("x", -512).tobuf(tarfile.GNU_FORMAT),
    "a header that leads back": member("x", -512, X).tobuf(tarfile.GNU_FORMAT),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", HEADERS)
def test_headers_that_grow_in_memory_or_time_end_the_archive(name: str, tmp_path: Path) -> None:
    path = tmp_path / "a.tgz"
    whole = header(tarfile.REGTYPE, png(), "good.png") + HEADERS[name] + END
    path.write_bytes(gzip.compress(whole, 1))
    ends_early("tar", path)


def ends_early(kind: str, path: Path) -> None:
    source = ArchiveSource(kind, str(path))
    apart = SubprocessSource(source, str(path), silence_s=SILENCE_S, memory_bytes=256 * MIB)
    began = time.monotonic()
    *_, last = apart.items()
    archives.stop_readers()
    assert expect(Skipped, last).path == str(path)
    assert reason(last).isprintable()
    assert time.monotonic() - began < 10 * SILENCE_S


# Zip: entries are written by hand, because zipfile makes sound ones.
LOCAL = struct.Struct("<4s5H3L2H")
CENTRAL = struct.Struct("<4s6H3L5H2L")
END_OF_ZIP = struct.Struct("<4s4H2LH")


def overlapping(path: Path) -> None:
    """One kernel of data, counted by the thousand."""
    packer = zlib.compressobj(9, wbits=-15)
    packed = packer.compress(png() + bytes(20 * MIB)) + packer.flush()
    size, data = len(png()) + 20 * MIB, b""
    data = LOCAL.pack(b"PK\3\4", 20, 0, 8, 0, 0, 0, len(packed), size, 5, 0) + b"a.png" + packed
    directory = b"".join(
        CENTRAL.pack(
            *(b"PK\1\2", 20, 20, 0, 8, 0, 0, 0, len(packed), size, len(name), 0, 0, 0, 0, 0, 0)
        )
        + name
        for name in (b"%d.png" % number for number in range(1000))
    )
    end = END_OF_ZIP.pack(b"PK\5\6", 0, 0, 1000, 1000, len(directory), len(data), 0)
    path.write_bytes(data + directory + end)


def test_a_directory_of_more_names_than_the_process_may_hold(tmp_path: Path) -> None:
    entry = CENTRAL.pack(*(b"PK\1\2", 20, 20, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0))
    directory = b"".join(entry + b"%04x" % (n & 0xFFFF) for n in range(600_000))
    end = END_OF_ZIP.pack(b"PK\5\6", 0, 0, 0xFFFF, 0xFFFF, len(directory), 0, 0)
    path = tmp_path / "a.zip"
    path.write_bytes(directory + end)
    ends_early("zip", path)


def zeros(path: Path) -> None:
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(member("zeros.png", 1 << 40).tobuf(tarfile.GNU_FORMAT))
        for _ in range(300):
            file.write(bytes(MIB))


BOMBS: dict[str, Callable[[Path], object]] = {
    "overlapping.zip": overlapping,
    "zeros.tgz": zeros,
    "bomb.zip": zip_bomb,
    # Rows of 400 MB each, in some kB.
    "rows.parquet": lambda path: repeated(path, png(), 400_000_000, 10),
}


@pytest.mark.slow
def test_each_bomb_costs_its_archive(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    folder = tmp_path / "data"
    folder.mkdir()
    for name, write in BOMBS.items():
        write(folder / name)
    (folder / "good.png").write_bytes(png())
    took = spent(tmp_path, "scan", "--data", folder, "--json", "--quiet")
    assert (took.code, took.err) == (0, "")
    found = json.loads(took.out)
    assert found["corpus"]["items"] <= 30
    lines = found["skipped"]
    whole = [line["path"] for line in lines if "::" not in line["path"]]
    assert sorted(whole) == sorted(str(folder / name) for name in BOMBS)
    assert all(line["reason"].isprintable() for line in lines)
    assert took.most_bytes < 4 << 30
    assert took.seconds < 120


def test_an_archive_within_an_archive_is_not_opened(tmp_path: Path) -> None:
    inside = tar(tmp_path / "in.tar", ("a.png", png())).read_bytes()
    zipped(tmp_path / "a.zip", ("in.tar", inside))
    (found,) = ArchiveSource("zip", str(tmp_path / "a.zip")).items()
    assert found == Item(f"zip://in.tar::{tmp_path}/a.zip")


def test_a_table_that_lies_about_what_it_unpacks_to(tmp_path: Path) -> None:
    """The process that reads the table keeps to its memory; the rest of the corpus is read."""
    path = repeated(tmp_path / "t.parquet", png(40, 24), 60_000_000, 8)
    (found,) = SubprocessSource(ParquetSource(str(path)), str(path), memory_bytes=130 << 20).items()
    assert expect(Skipped, found).path == str(path)
    archives.stop_readers()


def test_a_table_that_takes_for_ever_costs_its_silence(tmp_path: Path) -> None:
    path = repeated(tmp_path / "t.parquet", png(40, 24), 50_000_000, 99)
    source = SubprocessSource(ParquetSource(str(path)), str(path), silence_s=0.01)
    assert list(source.items()) == [Skipped(str(path), "the decoder took more than 0.01 s")]


def test_many_tables_are_read_by_one_process(tmp_path: Path) -> None:
    for number in range(3):
        written(tmp_path / f"{number}.parquet", [png(40 + number, 24)])
        assert len(items_of(some(archive_source(str(tmp_path / f"{number}.parquet"))))) == 1
    assert len(archives._IDLE) == 1
    archives.stop_readers()
    assert archives._IDLE == {}


def test_a_reader_that_is_left_early_is_ended(tmp_path: Path) -> None:
    path = written(tmp_path / "t.parquet", [png(40, 24)] * 200)
    items = SubprocessSource(ParquetSource(str(path)), str(path)).items()
    assert isinstance(items, Generator)
    next(items)
    items.close()
    assert archives._IDLE == {}


@pytest.mark.slow
def test_a_picture_that_takes_minutes_to_decode(tmp_path: Path) -> None:
    """Its header is good; decoded, as the first files of a corpus are, it costs one timeout."""
    data = tmp_path / "data"
    slow_jpeg(data / "slow.jpg", 12_000, 2000)
    Image.new("RGB", (64, 48)).save(data / "good.picture", "PNG")
    began = time.monotonic()
    corpus = read_corpus(
        [data],
        [],
        allowed_root=None,
        cache=tmp_path / "cache",
        progress=Silent(),
        how=ProbeOptions(item_timeout_s=8),
    )
    assert corpus.census.items() == 1
    (skipped,) = corpus.skipped
    assert skipped == Skipped(str(data / "slow.jpg"), "the decoder took more than 8 s")
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
    took = spent(tmp_path, "report", tmp_path, "--data", slow.parent)
    assert took.code == 0, took.err
    assert "data:image" not in (tmp_path / "report.html").read_text()
    assert took.most_bytes < 1_000_000_000
    assert took.seconds < 60


pa = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")


def repeated(path: Path, start: bytes, size: int, rows: int) -> Path:
    """So many rows with one value of `size` bytes, which the file holds once, and packed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    value = pa.array([start + bytes(size - len(start))], pa.binary())
    values = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), value)
    parquet.write_table(
        pa.table({"image": values}),
        path,
        compression="zstd",
        compression_level=19,
        dictionary_pagesize_limit=1 << 30,
        store_schema=False,
    )
    return path


def written(path: Path, values: Sequence[bytes]) -> Path:
    parquet.write_table(pa.table({"image": list(values)}), path)
    return path
