"""Parquet tables that mean harm, and some that do not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

pa = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

Column = Callable[[Any], Any]


def plain(values: Any) -> Any:
    return values


def repeated(path: Path, start: bytes, size: int, rows: int, column: Column) -> Path:
    """So many rows with one value of `size` bytes, which the file holds once, and packed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    value = pa.array([start + bytes(size - len(start))], pa.binary())
    values = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), value)
    parquet.write_table(
        pa.table({"image": column(values)}),
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
