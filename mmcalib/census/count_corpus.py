"""Taking the census: sources in, shapes counted, what cannot be read listed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from mmcalib.census.accesses import Accesses, AccessLog
from mmcalib.census.census import Census
from mmcalib.census.contents import Contents
from mmcalib.census.counter import CorpusCounter
from mmcalib.census.prober import Prober
from mmcalib.census.prompts import PromptCensus
from mmcalib.corpus.source import Source
from mmcalib.domain.items import Item, Prompt, Skipped, carried_bytes
from mmcalib.domain.shapes import AudioShape, ImageShape, VideoShape
from mmcalib.errors import CorpusError, MmcalibError
from mmcalib.media.file_names import IMAGE_ENDINGS, SOUND_ENDINGS, VIDEO_ENDINGS, ending_of
from mmcalib.progress import Progress, Silent
from mmcalib.scratch import Scratch
from mmcalib.wording import one_line

_Prompts = list[Prompt | Skipped]

# Of bytes that only the source can get at: a group is closed when it carries as many. Two groups
# per worker are under way.
_FULL_BYTES = 16 << 20

# So few files may all be damaged alike.
_ALL = 3
_KINDS = (
    (ImageShape(64, 48), IMAGE_ENDINGS),
    (VideoShape(4, 2.0, 2.0, 64, 48), VIDEO_ENDINGS),
    (AudioShape(800, 16_000), SOUND_ENDINGS),
)


@dataclass(frozen=True, slots=True)
class CorpusCount:
    """A corpus after one reading of its headers; `files` are the distinct paths in it, and so many
    items differ in content where `repeats` were asked for.
    """

    census: Census
    prompts: PromptCensus
    skipped: list[Skipped]
    files: int
    accesses: Accesses
    distinct: int | None = None


def count_corpus(
    sources: Iterable[Source],
    prober: Prober,
    *,
    progress: Progress | None = None,
    in_order: bool = True,
    repeats: bool = False,
) -> CorpusCount:
    """Look at every file once and count; `prober` says what each is.

    An item counts once per mention in a usable prompt, so that traffic weighs. Every other file
    counts once: files in folders that no usable prompt mentions (by path or by link), and good
    files that only unusable prompts mention. A prompt with an unreadable item is skipped as a
    whole. Each prompt, and each path that was not counted, is listed as skipped once, in the order
    of the sources, prompts first. Memory grows by some 100 bytes with each distinct path, less for
    a single folder, and by a few bytes for each mention.

    `accesses` stay empty unless `in_order`; they and `repeats` may read whole files. Raises
    CorpusError when nothing at all could be counted.
    """
    sources = list(sources)
    contents = Contents() if repeats else None
    counter = CorpusCounter(prober, AccessLog() if in_order else None, contents)
    with (progress or Silent()).step("reading the corpus") as task:
        for source in sources:
            for prompts, lines in prober.each(_wanted(counter, source)):
                counter.prompts_seen(prompts, lines)
                task.advance(len(lines))
        for source in sources:
            for items, lines in prober.each(_unseen(counter, source)):
                counter.items_seen(items, lines)
                task.advance(len(lines))
    _refuse_broken_libraries(counter)
    if not counter.census.items():
        raise _nothing(counter)
    accesses = counter.log.accesses(progress) if counter.log else Accesses()
    skipped = list(counter.skipped.values())
    distinct = contents.distinct(progress) if contents else None
    return CorpusCount(counter.census, counter.prompts, skipped, counter.files, accesses, distinct)


def _wanted(
    counter: CorpusCounter, source: Source
) -> Iterator[tuple[tuple[_Prompts, list[Item]], list[Item]]]:
    """Prompts in groups, each with those of their items that must be looked at."""
    prompts: _Prompts = []
    items: list[Item] = []
    carried = 0
    executor = counter.prober.executor
    for prompt in source.prompts():
        prompts.append(prompt)
        items += counter.unseen(prompt)
        if isinstance(prompt, Prompt):
            carried += sum(map(carried_bytes, prompt.items))
        if max(len(items), len(prompts)) >= executor.chunk_items or carried >= _FULL_BYTES:
            yield (prompts, items), items
            prompts, items, carried = [], [], 0
    yield (prompts, items), items


def _unseen(counter: CorpusCounter, source: Source) -> Iterator[tuple[list[Item], list[Item]]]:
    """The files that are still to be looked at, in groups."""
    items: list[Item] = []
    carried = 0
    executor = counter.prober.executor
    for item in source.items():
        if isinstance(item, Skipped):
            counter.listed(item)
        elif counter.is_new(item):
            items.append(item)
            carried += carried_bytes(item)
            if len(items) >= executor.chunk_items or carried >= _FULL_BYTES:
                yield items, items
                items, carried = [], 0
    yield items, items


def _refuse_broken_libraries(counter: CorpusCounter) -> None:
    """Raises MmcalibError where all files of a kind fail for one reason and one that mmcalib
    writes itself does too: that is the installation and not the corpus.
    """
    for shape, endings in _KINDS:
        failed = [s for s in counter.skipped.values() if ending_of(s.path) in endings]
        one_reason = len({skipped.reason for skipped in failed}) == 1
        if not one_reason or len(failed) < _ALL or shape.modality in counter.census.modalities():
            continue
        from mmcalib.media.decode import selftest

        with Scratch() as scratch:
            why = selftest(shape, scratch.path)
        if why:
            said = f"no {shape.modality} can be read here: all {len(failed):,} files fail"
            raise MmcalibError(
                one_line(f"{said}, and so does a file that mmcalib writes itself: {why}"),
                hint="mmcalib doctor names the library and what to install",
            )


def _nothing(counter: CorpusCounter) -> CorpusError:
    first = next(iter(counter.skipped.values()), None)
    why = f"; {one_line(first.path)}: {first.reason}" if first else ""
    return CorpusError(
        f"nothing to measure: no image, video or audio in {counter.files} files{why}",
        hint="--data DIR names a folder of media files",
    )
