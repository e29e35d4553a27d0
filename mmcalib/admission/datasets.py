"""Filter a dataset of several libraries by a calibration."""

from __future__ import annotations

import itertools
import logging
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, get_args

from mmcalib.admission.calibration import Calibration
from mmcalib.errors import CorpusError
from mmcalib.gate.admission import Admission
from mmcalib.results.check import ReasonCounts
from mmcalib.text import one_line, printable

ACCEPTED = (
    "a dataset of Hugging Face datasets or Ray Data, a pyarrow Table or RecordBatch, a "
    "pandas.DataFrame or Series, a list or any other iterable of samples"
)
OnUnread = Literal["drop", "raise"]
_MOST_REASONS = 5
# Rows of a table at a time: a row may hold images of megabytes.
_ROWS = 64
_log = logging.getLogger("mmcalib.filter")


@dataclass(eq=False)
class SampleFilter:
    """Callable that returns whether to keep a sample; it can be pickled for worker processes."""

    admits: Callable[[Any], Admission]
    key: Callable[[Any], Any] | None
    allow_unknown: bool
    errors: OnUnread
    on_drop: Callable[[Any, Admission], object] | None
    _asked: int = 0
    _dropped: ReasonCounts = field(default_factory=ReasonCounts)

    def __call__(self, sample: Any) -> bool:
        try:
            item = self.key(sample) if self.key else sample
            answer = self.admits(item)
        except TypeError as error:
            more = "" if self.key else "; key=... names the item of each sample"
            error.add_note(f"sample {self._asked}{more}")
            raise
        self._asked += 1
        if answer.fits or (self.allow_unknown and answer.answer == "unknown"):
            return True
        if answer.unread and self.errors == "raise":
            is_path = isinstance(item, str | os.PathLike)
            which = os.fspath(item) if is_path else f"sample {self._asked - 1}"
            message = one_line(f"{which}: {answer.reason}")
            raise CorpusError(message, hint='errors="drop" leaves it out')
        self._dropped.add("sample", answer)
        if self.on_drop:
            self.on_drop(sample, answer)
        else:
            _log.info("dropped: %s", one_line(answer.reason))
        return False

    def filter_table(self, table: Any) -> list[bool]:
        """Answer for each row of an Arrow table, whose media are still encoded files."""
        return [self(row) for row in table.to_pylist()]

    def filter_each(self, samples: Iterable[Any]) -> Iterator[Any]:
        """Yield the admitted samples, then log the totals of the others."""
        yield from (sample for sample in samples if self(sample))
        self.sum_up()

    def sum_up(self) -> None:
        """Log a warning with the dropped samples by reason, if there are any."""
        reasons = self._dropped.largest_first()
        if not reasons:
            return
        dropped = sum(one.count for one in reasons)
        words = [f"{one.count:,} × {printable(one.reason)}" for one in reasons[:_MOST_REASONS]]
        if rest := dropped - sum(one.count for one in reasons[:_MOST_REASONS]):
            words.append(f"{rest:,} × other reasons")
        share = f"{dropped:,} of {self._asked:,}"
        _log.warning("mmcalib.filter dropped %s: %s", share, "; ".join(words))


def filter(  # noqa: A001 - mmcalib.filter
    dataset: Any,
    calibration: Calibration,
    *,
    key: Callable[[Any], Any] | None = None,
    allow_unknown: bool = False,
    allowed_local_media_path: str | os.PathLike[str] | None = None,
    allowed_media_domains: Sequence[str] = (),
    errors: OnUnread = "drop",
    on_drop: Callable[[Any, Admission], object] | None = None,
) -> Any:
    """Return the samples that the calibration admits, as a dataset of the same kind (an iterator
    for other iterables). Media of Hugging Face datasets stay encoded.

    `key` returns the item of a sample for `Calibration.admits`, such as a row's image.
    `on_drop` is called with each dropped sample and its answer; without it the logger
    `mmcalib.filter` gets a line at INFO. At the end the logger gets the totals by reason as a
    warning. `errors="raise"` raises CorpusError for an unreadable item, such as a missing file,
    instead of dropping it. Raises TypeError for anything but a dataset, and as `admits` does.
    """
    if errors not in get_args(OnUnread):
        raise ValueError(f"errors must be 'drop' or 'raise', not {errors!r}")
    if not isinstance(calibration, Calibration):
        raise TypeError(f"calibration must be a Calibration, not {type(calibration).__name__}")
    admits = partial(
        calibration.admits,
        allowed_local_media_path=allowed_local_media_path,
        allowed_media_domains=tuple(allowed_media_domains),
    )
    keeps = SampleFilter(admits, key, allow_unknown, errors, on_drop)
    admitted = _filter(dataset, keeps)
    keeps.sum_up()
    return admitted


def _filter(dataset: Any, keeps: SampleFilter) -> Any:
    for library, filter_own in _FILTERS.items():
        if library in sys.modules and (admitted := filter_own(dataset, keeps)) is not None:
            return admitted
    if isinstance(dataset, Mapping):
        raise TypeError(f"mmcalib.filter takes {ACCEPTED}; pass a single row to Calibration.admits")
    if isinstance(dataset, list | tuple):
        return type(dataset)([sample for sample in dataset if keeps(sample)])
    if isinstance(dataset, str | bytes) or not isinstance(dataset, Iterable):
        raise TypeError(f"mmcalib.filter takes {ACCEPTED}, not {type(dataset).__name__}")
    return keeps.filter_each(dataset)


def _arrow(dataset: Any, keeps: SampleFilter) -> Any:
    arrow = sys.modules["pyarrow"]
    if not isinstance(dataset, arrow.Table | arrow.RecordBatch):
        return None
    starts = range(0, dataset.num_rows, _ROWS)
    answers = [one for start in starts for one in keeps.filter_table(dataset.slice(start, _ROWS))]
    return dataset.filter(arrow.array(answers, arrow.bool_()))


def _hf(dataset: Any, keeps: SampleFilter) -> Any:
    datasets = sys.modules["datasets"]
    if isinstance(dataset, datasets.DatasetDict | datasets.IterableDatasetDict):
        return type(dataset)({name: _filter(split, keeps) for name, split in dataset.items()})
    if isinstance(dataset, datasets.IterableDataset):
        if dataset.features is None:
            return dataset.filter(keeps)
        form = getattr(getattr(dataset, "_formatting", None), "format_type", None)
        arrow = dataset.with_format("arrow")
        tables = arrow.filter(keeps.filter_table, batched=True, batch_size=_ROWS)
        return tables.with_format(form)
    if not isinstance(dataset, datasets.Dataset):
        return None
    tables = dataset.with_format("arrow").iter(batch_size=_ROWS)
    answers = itertools.chain.from_iterable(map(keeps.filter_table, tables))
    return dataset.select([number for number, fits in enumerate(answers) if fits])


def _ray(dataset: Any, keeps: SampleFilter) -> Any:
    return dataset.filter(keeps) if isinstance(dataset, sys.modules["ray.data"].Dataset) else None


def _pandas(dataset: Any, keeps: SampleFilter) -> Any:
    pandas = sys.modules["pandas"]
    if isinstance(dataset, pandas.Series):
        return dataset[[keeps(one) for one in dataset]]
    if not isinstance(dataset, pandas.DataFrame):
        return None
    return dataset[[keeps(row) for row in dataset.to_dict("records")]]


# By module: a program with such a dataset has imported it.
_FILTERS: Mapping[str, Callable[[Any, SampleFilter], Any]] = {
    "pyarrow": _arrow,
    "datasets": _hf,
    "ray.data": _ray,
    "pandas": _pandas,
}
