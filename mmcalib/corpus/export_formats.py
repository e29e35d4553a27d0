"""Which form an entry of an export has, and the requests in it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from importlib import import_module

from mmcalib.corpus.exported import Entry, Exported, ExportFormat, Unusable
from mmcalib.corpus.exports import AUTO, NAMES


def requests_of(entry: Entry, form: str) -> Iterator[Exported | Unusable]:
    """Those of an entry; `form` is one of `NAMES`, or `AUTO`."""
    formats = map(_format, NAMES if form == AUTO else [form])
    found = next((one for one in formats if one.recognises(entry)), None)
    if found is None:
        yield Unusable(_unknown(entry, form))
    else:
        yield from found.requests(entry)


@cache
def _format(name: str) -> ExportFormat:
    found: ExportFormat = import_module(f"mmcalib.corpus.exports.{name}").FORMAT
    return found


def _unknown(entry: Entry, form: str) -> str:
    if isinstance(entry, str):
        return "not JSON"
    return "no request in a form that is known" if form == AUTO else f"no request as {form} has it"
