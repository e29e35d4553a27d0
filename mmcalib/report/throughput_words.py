"""Rates and processor cores in words."""

from __future__ import annotations

from collections.abc import Iterator

from mmcalib import wording
from mmcalib.result.throughput import Rates, Throughput

_HEAD = ("", "items", "files measured", "CPU s per item", "cores for 100 items/s")
_SWEPT = ("encoder s per item", "in the best batch")
_PROMISED = ("items/s of one GPU, at most", "cores to feed it")
_RERUN = "mmcalib run with --encoder-sweep on the GPU that will serve"

_LEAST = 0.0001


def line(found: Throughput) -> str:
    """All of it on one line."""
    rates = _whole(found)
    said = (
        f"processing: {_short(rates.cpu_s)} s of CPU per item, "
        f"{_cores(rates.cores_per_100_items_s)} for 100 items/s"
    )
    if rates.items_per_s is not None and rates.cores is not None:
        most = f"{_short(rates.items_per_s)} items/s, {_cores(rates.cores)}"
        said += f"; one GPU's encoder at most {most}"
    return f"{said} [{found.label}]"


def sentence(found: Throughput) -> str:
    """What the rates are of."""
    rates = _whole(found)
    return (
        f"To load and process an item takes {_short(rates.cpu_s)} s of this machine's CPU in the "
        f"mean: {_cores(rates.cores_per_100_items_s)} for every 100 items/s, computed from "
        f"{wording.number(rates.measured)} measured files"
    )


def head(found: Throughput) -> tuple[str, ...]:
    return (
        *_HEAD,
        *(_SWEPT if found.device else ()),
        *(_PROMISED if _promised(found) else ()),
    )


def rows(found: Throughput) -> Iterator[tuple[str, ...]]:
    """One per modality, and one of all, under `head`."""
    for modality, one in found.modalities.items():
        yield modality, *_cells(found, one)
    if found.mix:
        yield "as in the corpus", *_cells(found, found.mix)


def notes(found: Throughput) -> Iterator[str]:
    """What costs most, what the numbers leave out, and what would complete them."""
    each = [(m, one.costliest) for m, one in found.modalities.items()]
    most = [f"{m} {_short(c.cpu_s)} s ({c.shape}, {c.exemplar})" for m, c in each]
    yield f"Most CPU of one file, measured: {'; '.join(most)}"
    yield (
        "CPU seconds are of all threads, measured file by file; shapes without a measured file are "
        "on a line through the measured ones. Transfer, text and hits of the processor cache are "
        "not in them"
    )
    if found.device is None:
        yield f"How fast the encoder is: {_RERUN}"
    elif _promised(found):
        yield (
            f"Items/s are of the encoder alone on {found.device}, in batches as good as the "
            "best that was swept: the language model is not in them, so a server does fewer"
        )
    else:
        yield (
            f"Encoder seconds are of {found.device}, {found.depth} of {found.true_depth} encoder "
            f"layers, and say nothing of a GPU: for items/s, {_RERUN}"
        )
    missing = [m for m, one in found.modalities.items() if found.device and one.encoder_s is None]
    if missing:
        yield f"The encoder was not swept with {' and '.join(missing)}"


def _whole(found: Throughput) -> Rates:
    return found.mix or next(iter(found.modalities.values()))


def _promised(found: Throughput) -> bool:
    return any(one.items_per_s is not None for one in found.modalities.values())


def _cells(found: Throughput, one: Rates) -> Iterator[str]:
    yield wording.number(one.items)
    yield wording.number(one.measured)
    yield _short(one.cpu_s)
    yield _short(one.cores_per_100_items_s)
    if found.device:
        yield _short(one.encoder_s)
        yield _short(one.encoder_least_s)
    if _promised(found):
        yield _short(one.items_per_s)
        yield _short(one.cores)


def _cores(value: float) -> str:
    return f"{_short(value)} core{'' if _short(value) == '1' else 's'}"


def _short(value: float | None) -> str:
    """Two digits: seconds of one run are no better."""
    if value is None:
        return "—"
    if 0 < value < _LEAST:
        return f"<{_LEAST}"
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"
