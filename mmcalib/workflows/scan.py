"""The census of a corpus, or of a part of it: headers only, and no engine."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from mmcalib.census.count_corpus import count_corpus
from mmcalib.corpus.shard import Shard, ShardPart
from mmcalib.domain.items import Skipped
from mmcalib.errors import UsageError
from mmcalib.options.probe import PROBE, ProbeOptions
from mmcalib.progress import Progress, Silent
from mmcalib.result.census_reading import read_census
from mmcalib.result.survey import Survey, merged
from mmcalib.result_files import read_skipped_jsonl
from mmcalib.workflows.probing import probing
from mmcalib.workflows.read import not_requests, resolved, sources_of
from mmcalib.workflows.spec import cache_dir

CENSUS, SKIPPED = "census.json", "skipped.jsonl"


@dataclass(frozen=True, slots=True)
class Scanned:
    """What there is, and, sorted by path, what was left out and why."""

    survey: Survey
    skipped: tuple[Skipped, ...]


def scan(
    data: Sequence[str | Path],
    requests: Sequence[Path] = (),
    *,
    allowed_root: Path | None = None,
    shard: Shard | None = None,
    repeats: bool = False,
    how: ProbeOptions = PROBE,
    progress: Progress | None = None,
) -> Scanned:
    """Read the headers of all sources, or of what `shard` has of them; `data` as for `resolve`.

    Raises CorpusError when a source is missing or, without `shard`, nothing could be read;
    UsageError when a request leads outside the allowed root.
    """
    if repeats and shard is not None and shard.of > 1:
        raise UsageError(
            "--repeats of one part says nothing of the whole", hint="leave --shard or --repeats out"
        )
    scratch = cache_dir() / "inline"
    found = resolved(data)
    sources = sources_of(found, requests, allowed_root=allowed_root, scratch=scratch)
    roots = [one.root for one in found]
    progress = progress or Silent()
    with probing(how, cache_dir(), progress) as prober:
        taken = count_corpus(
            sources,
            prober,
            progress=progress,
            part=_part(shard, roots, requests, allowed_root, scratch) if shard else None,
            in_order=False,
            repeats=repeats,
        )
    skipped = not_requests(taken.skipped, requests)
    survey = Survey.of(
        taken.census,
        taken.prompts,
        files=taken.files - (len(taken.skipped) - len(skipped)),
        skipped=len(skipped),
        distinct=taken.distinct,
        shards=[shard] if shard and shard.of > 1 else [],
    )
    return Scanned(survey, _in_order(skipped))


def merge(paths: Sequence[Path]) -> Scanned:
    """The census files at `paths`, or in these folders, as one, each with the list of what was
    skipped beside it. Raises UsageError.
    """
    files = [path / CENSUS if path.is_dir() else path for path in paths]
    skipped: list[Skipped] = []
    whole = merged(_surveys(files, skipped))
    return Scanned(whole, _in_order(skipped))


def _surveys(files: Iterable[Path], skipped: list[Skipped]) -> Iterator[Survey]:
    """One after the other; lists what each of them skipped."""
    for part in map(_load, files):
        skipped += part.skipped
        yield part.survey


def _load(file: Path) -> Scanned:
    survey = read_census(file)
    beside = file.with_name(SKIPPED)
    skipped = read_skipped_jsonl(beside) if survey.corpus.skipped else []
    if len(skipped) != survey.corpus.skipped:
        raise UsageError(
            f"{beside} lists {len(skipped)}, {file} counts {survey.corpus.skipped} skipped",
            hint=f"keep each {CENSUS} beside the {SKIPPED} that was written with it",
        )
    return Scanned(survey, tuple(skipped))


def _part(
    shard: Shard,
    roots: Sequence[str],
    requests: Sequence[Path],
    allowed_root: Path | None,
    scratch: Path,
) -> ShardPart:
    """Media of requests are named with links resolved, those of folders as they were given."""
    folders = [os.path.dirname(os.path.realpath(path)) for path in requests]
    others = map(os.path.realpath, [scratch, *([allowed_root] if allowed_root else [])])
    return ShardPart(shard, [*roots, *folders, *others])


def _in_order(skipped: Sequence[Skipped]) -> tuple[Skipped, ...]:
    return tuple(sorted(skipped, key=lambda entry: (entry.path, entry.reason)))
