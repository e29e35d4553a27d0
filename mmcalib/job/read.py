"""First step: the corpus by its headers, and by decoding where it is small enough."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from mmcalib.census.census import Census, ShapeCount
from mmcalib.census.prompts import PromptCensus
from mmcalib.census.shapes import Shape
from mmcalib.census.take import take
from mmcalib.corpus.folder import FolderSource
from mmcalib.corpus.item import Skipped
from mmcalib.corpus.requests import RequestsSource
from mmcalib.corpus.source import Source
from mmcalib.errors import CorpusError
from mmcalib.media.decode import decode_check
from mmcalib.progress import Progress

# A header cannot show that the end of a file is missing. Up to this many items all are decoded
# (some seconds per hundred); above, the sample that is measured is what is decoded.
DECODE_ALL_UP_TO = 1000
_DECODERS = 2


@dataclass(frozen=True, slots=True)
class Corpus:
    """What there is to serve, and what was left out and why."""

    census: Census
    prompts: PromptCensus
    skipped: tuple[Skipped, ...]
    files: int
    has_requests: bool


def read(
    data: Sequence[Path],
    requests: Sequence[Path],
    *,
    allowed_root: Path | None,
    scratch: Path,
    progress: Progress,
) -> Corpus:
    """Read all sources. Raises CorpusError when one is missing or nothing can be measured,
    UsageError when a request leads outside the allowed root.
    """
    sources: list[Source] = [
        RequestsSource(path, allowed_root=allowed_root, scratch=scratch) for path in requests
    ]
    sources += [FolderSource(path) for path in data]
    taken = take(sources, progress=progress)
    broken: dict[str, str] = {}
    if taken.census.items() <= DECODE_ALL_UP_TO:
        broken = _broken(taken.census, progress)
    census, skipped = _without(taken.census, broken)
    if not census.items():
        raise CorpusError(
            f"nothing to measure: all {len(broken)} media files are damaged",
            hint="--data DIR names a folder of media files",
        )
    prompts, unanswerable = _whole(taken.prompts, broken)
    # A requests file that lies among the media was read, though not as media.
    read_as_requests = {os.path.realpath(path) for path in requests}
    listed = [s for s in taken.skipped if os.path.realpath(s.path) not in read_as_requests]
    return Corpus(
        census=census,
        prompts=prompts,
        skipped=(*listed, *skipped, *unanswerable),
        files=taken.files,
        has_requests=bool(requests),
    )


def _broken(census: Census, progress: Progress) -> dict[str, str]:
    """Path -> why it cannot be decoded to its end, of the files that the census names."""
    named = [(path, e.shape.modality) for e in census.shapes() for path in e.exemplars]
    with (
        progress.step("decoding", len(named)) as task,
        ThreadPoolExecutor(_DECODERS) as pool,
    ):
        found: dict[str, str] = {}
        for (path, _), why in zip(named, pool.map(lambda n: decode_check(*n), named), strict=True):
            task.advance()
            if why is not None:
                found[path] = why
        return found


def _without(census: Census, broken: dict[str, str]) -> tuple[Census, list[Skipped]]:
    """The census less its broken files; a shape that only they had goes with them."""
    kept: list[ShapeCount] = []
    for entry in census.shapes():
        whole = tuple(path for path in entry.exemplars if path not in broken)
        count = entry.count - (len(entry.exemplars) - len(whole))
        if whole and count > 0:
            kept.append(ShapeCount(entry.shape, count, whole))
    return Census(kept), [Skipped(path, why) for path, why in broken.items()]


def _whole(prompts: PromptCensus, broken: dict[str, str]) -> tuple[PromptCensus, list[Skipped]]:
    """The prompts whose items can all be decoded, and the others."""
    kept, left_out = [], []
    for entry in prompts.signatures():
        bad = [item.path for item in entry.exemplar.items if item.path in broken]
        if bad:
            reason = f"names an unreadable item: {bad[0]}: {broken[bad[0]]}"
            left_out.append(Skipped(entry.exemplar.origin, reason))
        else:
            kept.append(entry)
    return PromptCensus(kept), left_out


def shapes_of(census: Census) -> dict[Shape, ShapeCount]:
    """Every shape with its count and exemplars."""
    return {entry.shape: entry for entry in census.shapes()}
