"""The census of a corpus: headers only, and no engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mmcalib.census.census import Census
from mmcalib.census.count_corpus import count_corpus
from mmcalib.domain.items import Skipped
from mmcalib.options.probe import PROBE, ProbeOptions
from mmcalib.progress import Progress, Silent
from mmcalib.result.census import ScannedCorpus, modalities_of
from mmcalib.workflows.probing import probing
from mmcalib.workflows.read import not_requests, sources_of
from mmcalib.workflows.spec import cache_dir


@dataclass(frozen=True, slots=True)
class Scanned:
    """What there is, and, sorted by path, what was left out and why."""

    corpus: ScannedCorpus
    census: Census
    skipped: tuple[Skipped, ...]


def scan(
    data: Sequence[str | Path],
    requests: Sequence[Path] = (),
    *,
    allowed_root: Path | None = None,
    repeats: bool = False,
    how: ProbeOptions = PROBE,
    progress: Progress | None = None,
) -> Scanned:
    """Read the headers of all sources; `data` as for `resolve`.

    Raises CorpusError when a source is missing or nothing could be read; UsageError when a request
    leads outside the allowed root.
    """
    scratch = cache_dir() / "inline"
    sources = sources_of(data, requests, allowed_root=allowed_root, scratch=scratch)
    progress = progress or Silent()
    with probing(how, cache_dir(), progress) as prober:
        taken = count_corpus(sources, prober, progress=progress, in_order=False, repeats=repeats)
    skipped = not_requests(taken.skipped, requests)
    corpus = ScannedCorpus(
        items=taken.census.items(),
        prompts=taken.prompts.prompts(),
        files=taken.files - (len(taken.skipped) - len(skipped)),
        skipped=len(skipped),
        modalities=modalities_of(taken.census),
        distinct=taken.distinct or None,
    )
    in_order = sorted(skipped, key=lambda entry: (entry.path, entry.reason))
    return Scanned(corpus, taken.census, tuple(in_order))
