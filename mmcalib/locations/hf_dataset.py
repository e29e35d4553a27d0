"""One cell of a dataset that `datasets` streams."""

from __future__ import annotations

import atexit
import io
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import parse_qsl, urlsplit

from mmcalib.domain.items import Item
from mmcalib.errors import UsageError
from mmcalib.locations.location import BEHIND, Location
from mmcalib.locations.opening import Opened
from mmcalib.locations.optional_deps import need, plain_errors
from mmcalib.locations.table_cell import Cell, Cursor
from mmcalib.wording import one_line

SCHEME = "hf-dataset"
_KEYS = ("name", "split", "data_dir", "data_files", "revision")
_DEFAULT_SPLIT = "train"


@dataclass(frozen=True, slots=True)
class Query:
    """What `datasets.load_dataset` is asked for."""

    path: str
    options: Mapping[str, str]

    @classmethod
    def of(cls, url: str) -> Query:
        """Raises UsageError."""
        parts = urlsplit(url)
        options = dict(parse_qsl(parts.query))
        path = (parts.netloc + parts.path).rstrip("/")
        unknown = sorted(set(options) - set(_KEYS))
        if parts.scheme != SCHEME or not path or unknown:
            why = f"no such option: {', '.join(unknown)}" if unknown else "no name of a dataset"
            raise UsageError(
                f"{one_line(url)}: {one_line(why)}",
                hint=f"{SCHEME}://NAME?" + "&".join(f"{key}=…" for key in _KEYS),
            )
        return cls(path, {"split": _DEFAULT_SPLIT, **options})

    @property
    def folders(self) -> tuple[str, ...]:
        """Those of this machine that the user named, links resolved."""
        named = (self.path, self.options.get("data_dir", ""), self.options.get("data_files", ""))
        here = [one for one in named if one and Location.of(one).is_file]
        # Of a pattern the part before it.
        plain = [re.split(r"[*?\[]", one)[0] for one in here]
        return tuple(
            os.path.realpath(one if os.path.isdir(one) else os.path.dirname(one))
            for one in plain
            if os.path.dirname(one) or os.path.isdir(one)
        )

    @property
    def hosts(self) -> tuple[str, ...]:
        """Of the URLs that the user named, with their schemes."""
        named = (self.options.get("data_dir", ""), self.options.get("data_files", ""))
        found = (urlsplit(one.rpartition(BEHIND)[2]) for one in named if "://" in one)
        return tuple(f"{one.scheme}://{one.netloc}/" for one in found if one.netloc)


def open_dataset(query: Query, start: int = 0) -> Iterator[Mapping[str, object]]:
    """Its rows from `start` on, media as the bytes or the path that they are.

    Raises OSError or ValueError, also from within, and UsageError without `datasets`.
    """
    datasets = need("datasets", "hf")
    with plain_errors("hf"):
        datasets.disable_progress_bars()
        # What it says of each attempt, the error says once.
        need("huggingface_hub.utils", "hf").logging.set_verbosity_error()
        rows = datasets.load_dataset(query.path, streaming=True, **query.options)
        rows = rows.decode(False)
        return _plain(iter(rows.skip(start) if start else rows))


def _plain(rows: Iterator[Mapping[str, object]]) -> Iterator[Mapping[str, object]]:
    with plain_errors("hf"):
        yield from rows


def open_item(item: Item, location: Location) -> Opened:
    """Streams the dataset up to the row. Raises OSError or ValueError, and UsageError."""
    cell = Cell.of(location.member)
    row = _cursor(location.archive or "").row(cell.row)
    data = cell.bytes_of(row.get(cell.column) if isinstance(row, dict) else None)
    return Opened(io.BytesIO(data), len(data))


@lru_cache(maxsize=1)
def _cursor(url: str) -> Cursor:
    query = Query.of(url)
    return Cursor(lambda row: open_dataset(query, row))


# A table that is still open complains when the interpreter ends.
atexit.register(_cursor.cache_clear)
