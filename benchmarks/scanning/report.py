"""The measurements as Markdown, and which targets they reach."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from mmcalib.domain.shapes import MODALITIES, Modality
from scanning import readers, whole
from scanning.growth import Grown
from scanning.media import Group
from scanning.timing import Timed
from scanning.whole import Scans

# What the tool promises.
LEAST_OF_BARE, IMAGE_DECODES, VIDEO_FFPROBES = 0.8, 100, 20
LEAST_WARM_PER_S, LEAST_SPEEDUP = 100_000, 1.7
MILLION, MILLION_BYTES, LINEAR = 1_000_000, 400e6, 0.1

PHOTO_FORMAT = "jpg"

_BARE = {"image": "`Image.open(path).size`", "video": "`av.open`", "audio": "`soundfile.info`"}


@dataclass(frozen=True, slots=True)
class Probed:
    """How long each reader that had all answers takes for the files of one group."""

    group: Group
    timed: Mapping[str, Timed]

    def seconds(self, reader: str) -> float | None:
        return self.timed[reader].best_s if reader in self.timed else None


@dataclass(frozen=True, slots=True)
class Verdict:
    """A target, what was found, and whether that is enough."""

    target: str
    found: str
    passed: bool


def times(probed: Sequence[Probed], reader: str) -> float | None:
    """How many times mmcalib's time `reader` takes for those groups that it could read."""
    both = [(one.seconds(reader), one.seconds(readers.MMCALIB)) for one in probed]
    pairs = [(other, own) for other, own in both if other is not None and own is not None]
    return sum(other for other, _ in pairs) / sum(own for _, own in pairs) if pairs else None


def probe_verdicts(probed: Sequence[Probed]) -> Iterator[Verdict]:
    """Over the real files together, as a loop over the corpus would take, and over photographs as
    cameras write them. Made files of other formats stand in the tables alone.
    """
    corpus = [one for one in probed if one.group.origin == "corpus"]
    images = [one for one in corpus if one.group.modality == "image"]
    videos = [one for one in corpus if one.group.modality == "video"]
    photos = [
        one for one in probed if (one.group.origin, one.group.format) == ("photo", PHOTO_FORMAT)
    ]
    yield from _verdict("images: share of bare Pillow's speed", images, readers.BARE, LEAST_OF_BARE)
    yield from _verdict("photos: share of bare Pillow's speed", photos, readers.BARE, LEAST_OF_BARE)
    yield from _verdict("images: full decode takes", images, readers.DECODE, IMAGE_DECODES)
    yield from _verdict("photos: full decode takes", photos, readers.DECODE, IMAGE_DECODES)
    yield from _verdict("videos: share of bare PyAV's speed", videos, readers.BARE, LEAST_OF_BARE)
    yield from _verdict("videos: ffprobe takes", videos, readers.FFPROBE, VIDEO_FFPROBES)


def _verdict(said: str, probed: Sequence[Probed], reader: str, least: float) -> Iterator[Verdict]:
    found = times(probed, reader)
    if found is None:
        return
    form = _share if reader == readers.BARE else _ratio
    each = [(value, one.group.format) for one in probed if (value := times([one], reader))]
    words = [form(found)]
    if len(each) > 1:
        lowest, name = min(each)
        words.append(f"{name} {form(lowest)}")
    bare = times(probed, readers.BARE)
    if reader != readers.BARE and bare:
        words.append(f"bare {form(found / bare)}")
    yield Verdict(f"{said} ≥ {form(least)}", "; ".join(words), found >= least)


def scan_verdicts(scanned: Mapping[str, Scans]) -> Iterator[Verdict]:
    for name, scans in scanned.items():
        faster = scans.rate(whole.TWO) / scans.rate(whole.ONE)
        said = f"{faster:.2f}×"
        if whole.BARE in scans.timed:
            said += f"; bare {scans.rate(whole.TWO_BARE) / scans.rate(whole.BARE):.2f}×"
        yield Verdict(f"{name}: 2 workers ≥ {LEAST_SPEEDUP}× 1", said, faster >= LEAST_SPEEDUP)
        warm = scans.rate(whole.WARM)
        yield Verdict(
            f"{name}: full cache ≥ {LEAST_WARM_PER_S:,} items/s",
            f"{warm:,.0f}",
            warm >= LEAST_WARM_PER_S,
        )


def growth_verdicts(grown: Sequence[Grown]) -> Iterator[Verdict]:
    if len(grown) > 2:
        costs = further(grown)
        off = costs[-1] / costs[-2] - 1
        yield Verdict(
            f"each further item up to {grown[-1].cold.items:,} costs what it did up to "
            f"{grown[-2].cold.items:,}, at most {LINEAR:.0%} more",
            f"{off:+.0%}",
            off <= LINEAR,
        )
    last = grown[-1].cold
    if last.items >= MILLION:
        peak = max(last.peak_bytes, grown[-1].warm.peak_bytes)
        yield Verdict(
            f"{last.items:,} items: parent < {_mb(MILLION_BYTES)} MB",
            f"{_mb(peak)} MB",
            peak < MILLION_BYTES,
        )


def further(grown: Sequence[Grown]) -> list[float]:
    """Seconds per item that each size has more than the one before."""
    cold = [one.cold for one in grown]
    return [
        (later.seconds - before.seconds) / (later.items - before.items)
        for before, later in pairwise(cold)
    ]


def verdict_table(verdicts: Sequence[Verdict]) -> str:
    rows = [[one.target, one.found, "pass" if one.passed else "**fail**"] for one in verdicts]
    return _table(["target", "found", ""], rows, left=3)


def probe_tables(probed: Sequence[Probed]) -> str:
    return "\n".join(
        _probe_table(kind, chosen)
        for kind in MODALITIES
        if (chosen := [one for one in probed if one.group.modality == kind])
    )


def _probe_table(kind: Modality, probed: Sequence[Probed]) -> str:
    others = [name for name in _names(probed) if name not in (readers.MMCALIB, readers.BARE)]
    rows = [
        [
            *(one.group.format, one.group.origin, str(len(one.group.paths))),
            _or_dash(times([one], readers.BARE), _share),
            *(_or_dash(times([one], name), _ratio) for name in others),
            _or_dash(_per_file_us([one], readers.MMCALIB), _us),
            _or_dash(_per_file_us([one], readers.BARE), _us),
        ]
        for one in probed
    ]
    heads = ["format", "origin", "files", "of bare", *others, "µs", "bare, µs"]
    return f"### {kind.capitalize()}: bare is {_BARE[kind]}\n\n{_table(heads, rows, left=2)}"


def _per_file_us(probed: Sequence[Probed], reader: str) -> float | None:
    seconds = probed[0].seconds(reader)
    return None if seconds is None else seconds * 1e6 / len(probed[0].group.paths)


def _names(probed: Sequence[Probed]) -> list[str]:
    return list(dict.fromkeys(name for one in probed for name in one.timed))


def scan_table(scanned: Mapping[str, Scans]) -> str:
    rows = [
        [
            *(tree, f"{scans.items:,}", name),
            f"{scans.rate(name) / scans.rate(whole.ONE):.2f}×",
            f"{scans.rate(name):,.0f}",
            _us(timed.best_s * 1e6 / scans.items),
            *(_us(part * 1e6 / scans.items) for part in scans.processor_s[name]),
            f"{timed.spread:.0%}",
        ]
        for tree, scans in scanned.items()
        for name, timed in scans.timed.items()
    ]
    heads = [
        *("tree", "items", "scan", "of 1 worker", "items/s", "µs"),
        *("parent's CPU, µs", "workers' CPU, µs", "median above best"),
    ]
    return _table(heads, rows, left=1)


def growth_table(grown: Sequence[Grown]) -> str:
    rows = [
        [
            f"{one.cold.items:,}",
            f"{one.cold.seconds:.2f}",
            f"{one.cold.seconds / one.cold.items * 1e6:.1f}",
            f"{cost * 1e6:.1f}" if cost is not None else "–",
            _mb(one.cold.peak_bytes),
            f"{one.warm.seconds:.2f}",
            _mb(one.warm.peak_bytes),
        ]
        for one, cost in zip(grown, [None, *further(grown)], strict=True)
    ]
    heads = [
        *("items", "cold, s", "µs per item", "µs per further item", "parent's peak, MB"),
        *("warm, s", "parent's peak, MB"),
    ]
    return _table(heads, rows, left=0)


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]], *, left: int) -> str:
    rule = ["---" if at < left else "--:" for at in range(len(heads))]
    lines = ["| " + " | ".join(row) + " |" for row in (heads, *rows)]
    return "\n".join([lines[0], "|" + "|".join(rule) + "|", *lines[1:]]) + "\n"


def _or_dash(value: float | None, form: Callable[[float], str]) -> str:
    return "–" if value is None else form(value)


def _share(value: float) -> str:
    return f"{value:.0%}"


def _ratio(value: float) -> str:
    return f"{value:.1f}×" if value < 10 else f"{value:,.0f}×"


def _us(value: float) -> str:
    return f"{value:,.1f}" if value < 100 else f"{value:,.0f}"


def _mb(nbytes: float) -> str:
    return f"{nbytes / 1e6:,.0f}"
