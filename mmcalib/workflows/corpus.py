"""Read or scan a corpus."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Collection, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby, islice
from pathlib import Path
from types import MappingProxyType
from typing import Any

from mmcalib.census.accesses import find_first_equal
from mmcalib.census.cache import Cache, CacheBroken
from mmcalib.census.census import Census
from mmcalib.census.counter import CorpusCount, Prober, count_corpus
from mmcalib.census.executor import TIMEOUT_S, Executor, FunctionRef
from mmcalib.census.pool import LocalPool
from mmcalib.census.prompts import PromptCensus
from mmcalib.configs.opening import find_configuration, open_model
from mmcalib.configs.read import read_configuration
from mmcalib.corpus.archives import stop_readers
from mmcalib.corpus.chat import Prompt, Source, Text
from mmcalib.corpus.given import format_text
from mmcalib.corpus.requests import Reading, RequestsSource, open_requests
from mmcalib.corpus.resolve import find_sources
from mmcalib.decision.media_files import Files, prepare_files
from mmcalib.decision.texts import BATCH, ReadTexts, Texts
from mmcalib.domain.items import Skipped
from mmcalib.domain.shapes import EncodedItem, Modality, Shape, format_size, takes_video_as_audio
from mmcalib.engine.host import EngineHost
from mmcalib.errors import OutputError
from mmcalib.files import write_text
from mmcalib.limits.costs import CostTable, token_quantiles
from mmcalib.limits.frontier import compute_retention
from mmcalib.models.resolve import cache_dir
from mmcalib.options.run import PROBE, ProbeOptions
from mmcalib.progress import Progress, Silent
from mmcalib.results.calibration import Corpus, ModalityItems
from mmcalib.results.doctor import ScannedCorpus, ScannedModality
from mmcalib.text import plural


def corpus_figures(
    table: CostTable,
    corpus: LoadedCorpus | None,
    skipped: int,
    tuned: CostTable | None = None,
    least_kept: Mapping[Modality, float] = MappingProxyType({}),
) -> Corpus:
    """Return each modality's spread in `table`, and its retention in the `tuned` one."""
    modalities = {}
    for modality in table.modalities():
        costs, heaviest = table.columns_of(modality), table.heaviest(modality)
        modalities[str(modality)] = ModalityItems(
            items=costs.item_count(),
            unique_shapes=len(costs),
            tokens=token_quantiles(costs),
            heaviest=str(heaviest.shape) if heaviest else "",
            exemplar=heaviest.exemplar if heaviest else "",
            witnesses=table.witnesses.get(modality),
            kept=compute_retention(tuned.columns_of(modality), costs) if tuned else None,
            least_kept=round(least_kept[modality], 4) if modality in least_kept else None,
            given=corpus.census.given_items(modality) if corpus else 0,
        )
    prompts = corpus.prompts.prompts() if corpus else 0
    return Corpus(prompts=prompts, skipped=skipped, modalities=modalities)


CACHE = "census.sqlite3"

# The probe function and the name of its cache: a sound-only model uses only the sound of videos.
# Functions are named, not imported: media libraries take 0.25 s, which a cached corpus saves.
_PROBE = FunctionRef("mmcalib.media.probe", "examine"), CACHE
_PROBE_SOUND = FunctionRef("mmcalib.media.probe", "examine", (True,)), f"sound-{CACHE}"


@contextmanager
def open_prober(
    how: ProbeOptions, folder: Path, progress: Progress, whole: int = 0, *, sound: bool = False
) -> Iterator[Prober]:
    """Open a prober with a cache in `folder`; it decodes the first `whole` items to their end."""
    probe, name = _PROBE_SOUND if sound else _PROBE
    cache = None
    if not how.no_cache:
        try:
            cache = Cache(folder / "census" / name)
        except CacheBroken as error:
            progress.note(f"no cache for this corpus: {error}")
    prober = Prober(_open_executor(how, probe), cache, whole, progress)
    try:
        yield prober
    finally:
        prober.close()
        stop_readers()


def _open_executor(how: ProbeOptions, probe: FunctionRef) -> Executor:
    if how.executor == "ray":
        from mmcalib.census.ray import RayExecutor

        return RayExecutor(probe, workers=how.workers, timeout_s=how.item_timeout_s)
    return LocalPool(probe, workers=how.workers, timeout_s=how.item_timeout_s)


# A header cannot show a truncated file: the first files are decoded to their end, 100 in 1 or 2 s.
DECODED_FILES = 1000


@dataclass(frozen=True, slots=True)
class LoadedCorpus(CorpusCount):
    """A corpus to serve; `skipped` was left out, `decoded`: all local files to their end."""

    decoded: bool = False
    texts: ReadTexts | None = None

    def is_sound_only_for(self, modalities: Container[Modality]) -> bool:
        """Return whether a model of these modalities uses only the sound of its videos."""
        return self.census.items("video") > 0 and takes_video_as_audio(modalities)

    def only(self, modalities: Collection[Modality]) -> LoadedCorpus:
        """Drop items of other modalities, and requests that carry one."""
        return replace(
            self,
            census=self.census.exclude_files(lambda file: file.modality not in modalities),
            prompts=keep_requests(self.prompts, lambda shape: shape.modality in modalities),
        )


def keep_requests(prompts: PromptCensus, serves: Callable[[Shape], bool]) -> PromptCensus:
    """Drop requests with an item that is not served."""
    every = prompts.signatures()
    return PromptCensus(entry for entry in every if all(map(serves, entry.signature.shapes)))


def read_corpus(
    data: Sequence[str | Path],
    requests: Sequence[Path],
    *,
    allowed_root: Path | None,
    progress: Progress,
    cache: Path | None = None,
    how: ProbeOptions = PROBE,
    sound: bool = False,
) -> LoadedCorpus:
    """Read all sources. Raises CorpusError if one is missing or empty, or UsageError."""
    cache = cache or cache_dir()
    sources = sources_of(data, requests, allowed_root, cache)

    def texts(origins: Container[str] | None) -> Iterator[Text]:
        for source in sources:
            if isinstance(source, RequestsSource):
                yield from source.texts(origins)

    with open_prober(how, cache, progress, whole=DECODED_FILES, sound=sound) as prober:
        counted = count_corpus(sources, prober)
    return LoadedCorpus(
        counted.census,
        counted.prompts,
        drop_requests_files(counted.skipped, requests),
        counted.files,
        counted.accesses,
        decoded=counted.files <= DECODED_FILES,
        texts=texts,
    )


def files_of(corpus: LoadedCorpus, timeout_s: float = TIMEOUT_S) -> Files:
    """Return the function that prepares the corpus' media for vLLM."""
    return partial(prepare_files, timeout_s=timeout_s, decoded=corpus.decoded)


def sources_of(
    data: Sequence[str | Path], requests: Sequence[Path], allowed_root: Path | None, cache: Path
) -> list[Source]:
    """Return all sources, requests first. Raises CorpusError if one is missing, and UsageError."""
    media = [source for one in data for source in find_sources(one)]
    how = Reading(cache / "inline", allowed_root, at_rest=True)
    return [*open_requests(requests, how), *media]


def drop_requests_files(skipped: Sequence[Skipped], requests: Sequence[Path]) -> list[Skipped]:
    """Remove requests files in a media folder from `skipped`: they were read as requests."""
    own = {os.path.realpath(path) for path in requests}
    if not own:
        return list(skipped)
    # A path with a NUL byte has no real path.
    return [s for s in skipped if "\0" in s.path or os.path.realpath(s.path) not in own]


@contextmanager
def open_texts(model: str | None, progress: Progress) -> Iterator[Texts | None]:
    """Open the model to count texts; None without one, or if it has no tokenizer."""
    named = read_configuration(None, (), model)
    found = find_configuration(named, progress).resolved if model else None
    if found is None or found.source == "bundled":
        yield None
        return
    with EngineHost(on_note=progress.note, on_log=progress.log) as host:
        open_model(host, found, progress)
        yield Texts(host)


def saved_lines(
    sources: Sequence[Source], counted: CorpusCount, texts: Texts | None, progress: Progress
) -> Iterator[dict[str, Any]]:
    """Yield the corpus as sizes: requests in order, then loose items. Repeated items have a tag."""
    files = {i: seen for i, seen in counted.known.items() if isinstance(seen, EncodedItem)}
    first = dict(zip(files, find_first_equal(list(files), progress), strict=True))

    def usable() -> Iterator[Prompt]:
        for source in sources:
            for prompt in source.prompts():
                if isinstance(prompt, Prompt) and all(item in files for item in prompt.items):
                    yield prompt

    times = Counter(first[item] for prompt in usable() for item in prompt.items)
    tags = {n: str(tag) for tag, n in enumerate((n for n in times if times[n] > 1), 1)}
    named = Counter[EncodedItem]()
    remaining = usable()
    while group := list(islice(remaining, BATCH)):
        requests = [prompt.request for prompt in group]
        asked = texts.measure(requests) if texts else (one.measure_context() for one in requests)
        for prompt, text in zip(group, asked, strict=True):
            named.update(files[item] for item in prompt.items)
            sizes = [format_size(files[item], tags.get(first[item], "")) for item in prompt.items]
            yield {"sizes": sizes, **format_text(text)}
    for file, entry in counted.census.encoded_counts():
        if entry.count > named[file]:
            yield {"loose": [format_size(file)], "count": entry.count - named[file]}


def lost_by_saving(counted: CorpusCount, *, in_tokens: bool) -> Iterator[str]:
    """Yield why a run from the saved sizes may differ from one with the media."""
    if requests := counted.prompts.prompts():
        how = "counted in tokens" if in_tokens else "bounded by bytes; --model CHECKPOINT counts it"
        yield f"words and times of {plural(requests, 'request')}: text is {how}"
    if some := [m for m in ("video", "audio") if counted.census.items(m)]:
        yield f"content of {' and '.join(some)}: a processor may drop silence or repeated frames"
    if counted.files > DECODED_FILES:
        yield f"damage behind the headers of {counted.files - DECODED_FILES} files"


def scan(
    data: Sequence[str | Path],
    requests: Sequence[Path] = (),
    *,
    allowed_root: Path | None = None,
    repeats: bool = False,
    save: Path | None = None,
    model: str | None = None,
    how: ProbeOptions = PROBE,
    progress: Progress | None = None,
) -> tuple[ScannedCorpus, Census, list[Skipped]]:
    """Count by headers; `save` sizes, and text in the `model`'s tokens. Raises MmcalibError."""
    if save and save.exists():
        raise OutputError(f"--save {save}: the file exists", hint="another name, or delete it")
    sources = sources_of(data, requests, allowed_root, cache_dir())
    progress = progress or Silent()
    with open_prober(how, cache_dir(), progress, DECODED_FILES if save else 0) as prober:
        counted = count_corpus(sources, prober, in_order=False, repeats=repeats)
    if save is not None:
        with open_texts(model, progress) as texts:
            lines = map(json.dumps, saved_lines(sources, counted, texts, progress))
            runs = ((line, sum(1 for _ in same)) for line, same in groupby(lines))
            counted_lines = (f'{t[:-1]}, "count": {n}}}\n' if n > 1 else f"{t}\n" for t, n in runs)
            write_text(save, "".join(counted_lines))
        for lost in lost_by_saving(counted, in_tokens=texts is not None):
            progress.note(f"not in {save.name}: {lost}")
    skipped, census = drop_requests_files(counted.skipped, requests), counted.census
    corpus = ScannedCorpus(
        items=census.items(),
        prompts=counted.prompts.prompts(),
        files=counted.files - (len(counted.skipped) - len(skipped)),
        skipped=len(skipped),
        modalities={
            m: ScannedModality(items=census.items(m), unique_shapes=len(census.counts(m)))
            for m in census.modalities()
        },
        distinct=counted.distinct or None,
        given=sum(map(census.given_items, census.modalities())),
    )
    return corpus, census, sorted(skipped, key=lambda entry: (entry.path, entry.reason))
