"""Of a dataset what a calibration admits, as the library that made it keeps one."""

from __future__ import annotations

import itertools
import logging
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from mmcalib.derive.admission import Admission
from mmcalib.wording import one_line
from mmcalib.workflows.gate.calibration import Calibration

TAKEN = (
    "a dataset of Hugging Face datasets, Ray Data, torch or webdataset, a pandas.DataFrame, a list "
    "or any other iterable of samples"
)
# Of a table at a time: rows may hold pictures of megabytes.
_ROWS = 64
_log = logging.getLogger("mmcalib.filter")


class Admits:
    """Whether a sample is kept: a callable that can be pickled, for workers of any kind."""

    def __init__(
        self,
        calibration: Calibration,
        *,
        key: Callable[[Any], Any] | None = None,
        allow_unknown: bool = False,
        allow_url: bool = False,
        on_drop: Callable[[Any, Admission], object] | None = None,
    ) -> None:
        self._calibration, self._key = calibration, key
        self._allow_unknown, self._allow_url = allow_unknown, allow_url
        self._on_drop = on_drop

    def __call__(self, sample: Any) -> bool:
        item = self._key(sample) if self._key else sample
        answer = self._calibration.admits(item, allow_url=self._allow_url)
        if answer.fits or (self._allow_unknown and answer.answer == "unknown"):
            return True
        if self._on_drop:
            self._on_drop(sample, answer)
        else:
            _log.info("dropped: %s", one_line(answer.reason))
        return False

    def of_table(self, table: Any) -> list[bool]:
        """Of each row of an Arrow table, whose media are still the files that they were."""
        return [self(row) for row in table.to_pylist()]


def filter(  # noqa: A001 - mmcalib.filter
    dataset: Any,
    calibration: Calibration,
    *,
    key: Callable[[Any], Any] | None = None,
    allow_unknown: bool = False,
    allow_url: bool = False,
    on_drop: Callable[[Any, Admission], object] | None = None,
) -> Any:
    """The samples that the calibration admits, as a dataset of the same kind; an iterator of an
    iterator. Pictures and sound of Hugging Face datasets are not decoded for it.

    `key` makes of a sample what `Calibration.admits` takes, where the sample is not that itself.
    `on_drop` is told of each that is left out; without it the logger `mmcalib.filter` is. Raises
    TypeError for what is no dataset.
    """
    if not isinstance(calibration, Calibration):
        raise TypeError(f"the second argument is a Calibration, not {type(calibration).__name__}")
    if calibration.costs is None:
        _ = calibration.gate
    keeps = Admits(
        calibration, key=key, allow_unknown=allow_unknown, allow_url=allow_url, on_drop=on_drop
    )
    return _kept(dataset, keeps)


def _kept(dataset: Any, keeps: Admits) -> Any:
    by_number = hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")
    named = isinstance(dataset, str | bytes | os.PathLike)
    if named or not (by_number or isinstance(dataset, Iterable)):
        raise TypeError(f"mmcalib.filter takes {TAKEN}; this is {type(dataset).__name__}")
    for library, kept in _KEPT.items():
        if library in sys.modules and (found := kept(dataset, keeps)) is not None:
            return found
    if isinstance(dataset, Mapping):
        raise TypeError(f"mmcalib.filter takes {TAKEN}; this is one row, for Calibration.admits")
    if isinstance(dataset, list | tuple):
        return type(dataset)([sample for sample in dataset if keeps(sample)])
    return (sample for sample in dataset if keeps(sample))


def _hf(dataset: Any, keeps: Admits) -> Any:
    datasets = sys.modules["datasets"]
    if isinstance(dataset, datasets.DatasetDict | datasets.IterableDatasetDict):
        return type(dataset)({name: _kept(split, keeps) for name, split in dataset.items()})
    if isinstance(dataset, datasets.IterableDataset):
        if dataset.features is None:
            return dataset.filter(keeps)
        form = getattr(getattr(dataset, "_formatting", None), "format_type", None)
        tables = dataset.with_format("arrow").filter(keeps.of_table, batched=True, batch_size=_ROWS)
        return tables.with_format(form)
    if not isinstance(dataset, datasets.Dataset):
        return None
    tables = dataset.with_format("arrow").iter(batch_size=_ROWS)
    answers = itertools.chain.from_iterable(map(keeps.of_table, tables))
    return dataset.select([number for number, keeps_it in enumerate(answers) if keeps_it])


def _ray(dataset: Any, keeps: Admits) -> Any:
    return dataset.filter(keeps) if isinstance(dataset, sys.modules["ray.data"].Dataset) else None


def _webdataset(dataset: Any, keeps: Admits) -> Any:
    webdataset = sys.modules["webdataset"]
    kinds = (webdataset.WebDataset, webdataset.DataPipeline)
    if not isinstance(dataset, kinds):
        return None
    return dataset.compose(webdataset.select(keeps))


def _pandas(dataset: Any, keeps: Admits) -> Any:
    if not isinstance(dataset, sys.modules["pandas"].DataFrame):
        return None
    return dataset[[keeps(row) for row in dataset.to_dict("records")]]


def _torch(dataset: Any, keeps: Admits) -> Any:
    data = sys.modules["torch.utils.data"]
    if isinstance(dataset, data.DataLoader):
        raise TypeError(
            "a DataLoader gives batches: filter the dataset below it, as in "
            "DataLoader(mmcalib.filter(dataset, calibration))"
        )
    if isinstance(dataset, data.IterableDataset):
        return _iterable_of_torch(dataset, keeps)
    if not isinstance(dataset, data.Dataset):
        return None
    numbers = range(len(dataset))
    return data.Subset(dataset, [number for number in numbers if keeps(dataset[number])])


def _iterable_of_torch(dataset: Any, keeps: Admits) -> Any:
    class Kept(sys.modules["torch.utils.data"].IterableDataset):  # type: ignore[misc]
        def __iter__(self) -> Iterator[Any]:
            return (sample for sample in dataset if keeps(sample))

        def __reduce__(self) -> Any:
            return _iterable_of_torch, (dataset, keeps)

    return Kept()


# By the module that whoever holds such a dataset has imported. A WebDataset is torch's, too.
_KEPT: Mapping[str, Callable[[Any, Admits], Any]] = {
    "datasets": _hf,
    "ray.data": _ray,
    "webdataset": _webdataset,
    "pandas": _pandas,
    "torch.utils.data": _torch,
}
