"""First step: the corpus by its headers, and by decoding where it is small enough."""

from __future__ import annotations

import os
from collections.abc import Collection, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Protocol

from mmcalib.census.accesses import Accesses
from mmcalib.census.census import Census
from mmcalib.census.count_corpus import count_corpus
from mmcalib.census.executors.timeout import TIMEOUT_S
from mmcalib.census.prompts import PromptCensus
from mmcalib.corpus.requests import RequestsSource, labels
from mmcalib.corpus.resolve import resolve
from mmcalib.corpus.source import Source
from mmcalib.domain.items import Skipped, Text
from mmcalib.domain.shapes import Modality
from mmcalib.options.probe import PROBE, ProbeOptions
from mmcalib.progress import Progress
from mmcalib.workflows.media_files import Files, files
from mmcalib.workflows.probing import probing

# A header cannot show that the end of a file is missing, so the first files are also decoded to
# their end, at a second or two per hundred. Of a larger corpus the rest is known by its headers,
# and by the sample that is measured.
DECODED_FILES = 1000


class ReadTexts(Protocol):
    """Reads requests again, those of the origins that are given or all, without their media."""

    def __call__(self, origins: Container[str] | None = None) -> Iterable[Text]: ...


@dataclass(frozen=True, slots=True)
class ReadCorpus:
    """What there is to serve, and what was left out and why. `decoded`: all that is on this
    machine's disk, to its end.
    """

    census: Census
    prompts: PromptCensus
    skipped: tuple[Skipped, ...]
    files: int
    accesses: Accesses = field(default_factory=Accesses)
    decoded: bool = False
    texts: ReadTexts | None = None

    def only(self, modalities: Collection[Modality]) -> ReadCorpus:
        """Without items of other modalities, and without the requests that carry one."""
        return replace(
            self,
            census=self.census.only(modalities),
            prompts=PromptCensus(
                entry
                for entry in self.prompts.signatures()
                if all(shape.modality in modalities for shape in entry.signature.shapes)
            ),
        )


def read(
    data: Sequence[str | Path],
    requests: Sequence[Path],
    *,
    allowed_root: Path | None,
    cache: Path,
    progress: Progress,
    how: ProbeOptions = PROBE,
) -> ReadCorpus:
    """Read all sources; `data` as `resolve` takes it.

    Raises CorpusError when one is missing or nothing can be measured, UsageError when a request
    leads outside the allowed root.
    """
    sources = sources_of(
        data,
        requests,
        allowed_root=allowed_root,
        scratch=cache / "inline",
    )
    with probing(how, cache, progress, whole=DECODED_FILES) as prober:
        taken = count_corpus(sources, prober, progress=progress)
    return ReadCorpus(
        taken.census,
        taken.prompts,
        tuple(not_requests(taken.skipped, requests)),
        taken.files,
        taken.accesses,
        decoded=taken.files <= DECODED_FILES,
        texts=partial(_texts, [s for s in sources if isinstance(s, RequestsSource)]),
    )


def _texts(
    sources: Sequence[RequestsSource], origins: Container[str] | None = None
) -> Iterator[Text]:
    for source in sources:
        yield from source.texts(origins)


def files_of(corpus: ReadCorpus, timeout_s: float = TIMEOUT_S) -> Files:
    """What hands its media to vLLM."""
    return partial(files, timeout_s=timeout_s, decoded=corpus.decoded)


def sources_of(
    data: Sequence[str | Path],
    requests: Sequence[Path],
    *,
    allowed_root: Path | None,
    scratch: Path,
) -> list[Source]:
    """Requests first. Raises CorpusError when one is missing, and UsageError."""
    found = [source for one in data for source in resolve(one)]
    sources: list[Source] = [
        RequestsSource(
            path,
            allowed_root=allowed_root,
            scratch=scratch,
            label=label,
            at_rest=True,
        )
        for path, label in zip(requests, labels(requests), strict=True)
    ]
    return [*sources, *found]


def not_requests(skipped: Sequence[Skipped], requests: Sequence[Path]) -> list[Skipped]:
    """A requests file that lies among the media was read, though not as media."""
    read_as_requests = {os.path.realpath(path) for path in requests}
    if not read_as_requests:
        return list(skipped)
    # What is no path at all has no real one either.
    return [
        s for s in skipped if "\0" in s.path or os.path.realpath(s.path) not in read_as_requests
    ]
