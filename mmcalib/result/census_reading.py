"""`census.json` read entry by entry: a million kinds of request take what their census does."""

from __future__ import annotations

from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path
from typing import Any, Final, TypeVar

from pydantic import TypeAdapter, ValidationError

from mmcalib.census.census import Census
from mmcalib.census.prompts import PromptCensus, PromptCount
from mmcalib.census.signature import PromptSignature
from mmcalib.documents import open_document
from mmcalib.domain.asked import Asked
from mmcalib.domain.encoding import Encoded
from mmcalib.domain.items import Item, Prompt
from mmcalib.domain.shape_counts import ShapeCount
from mmcalib.domain.shapes import Shape
from mmcalib.errors import UsageError
from mmcalib.long_document import LongDocument
from mmcalib.result.census import CensusDocument, CountedPrompt, CountedShape, totals
from mmcalib.result.part import complaint, said_of
from mmcalib.result.survey import Survey

# Seven million kinds of request, or fewer shapes, which take more memory.
_CENSUS_BYTES: Final = 1 << 31
_MOST_ENTRIES: Final = 4_000_000

T = TypeVar("T")

_SHAPE: Final[TypeAdapter[CountedShape]] = TypeAdapter(CountedShape)
_PROMPT: Final = TypeAdapter(CountedPrompt)


def read_census(path: Path) -> Survey:
    """What `Survey.to_json` gave. Raises UsageError for anything else."""
    hint = "mmcalib scan --data DIR --out OUT writes one"
    try:
        with open_document(path) as file:
            whole = BufferedReader(file)
            return read_survey(
                LongDocument(whole, most_bytes=_CENSUS_BYTES, most_entries=_MOST_ENTRIES)
            )
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", hint=hint) from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"not a census: {path}: {said_of(error)}", hint=hint) from error


def read_survey(document: LongDocument) -> Survey:
    """What a file says whose shapes stand before its prompts, as `Survey.to_json` writes them.

    Raises ValueError for anything else, RecursionError, and OSError where it cannot be read.
    """
    census, requests = Census(), PromptCensus()
    shapes: list[Shape] = []
    head: dict[str, Any] = {}
    for name in document.members():
        if name not in CensusDocument.model_fields:
            raise ValueError(f"{name}: extra")
        head[name] = []
        if name == "shapes":
            census = Census.of_encoded(_shapes(_entries(name, document, _SHAPE), shapes))
        elif name == "prompts":
            requests = PromptCensus(_prompts(_entries(name, document, _PROMPT), shapes))
        else:
            head[name] = document.value()
    try:
        said = CensusDocument.model_validate(head)
    except ValidationError as error:
        raise ValueError(complaint(error)) from error
    found = said.corpus
    if (found.items, found.prompts, found.modalities) != totals(census, requests):
        raise ValueError("the counts of the corpus are not those of its shapes and prompts")
    return Survey(said.tool, said.shards, found, census, requests)


def _entries(name: str, document: LongDocument, kind: TypeAdapter[T]) -> Iterator[T]:
    for place, entry in enumerate(document.entries()):
        try:
            checked = kind.validate_python(entry)
        except ValidationError as error:
            raise ValueError(complaint(error, name, place)) from error
        yield checked


def _shapes(
    entries: Iterator[CountedShape], listed: list[Shape]
) -> Iterator[tuple[Encoded, ShapeCount]]:
    for entry in entries:
        shape, paths = entry.shape, entry.exemplars
        listed.append(shape)
        if not entry.encodings:
            yield Encoded(shape), ShapeCount(shape, entry.count, tuple(paths))
        for one in entry.encodings:
            counted = ShapeCount(shape, one.count, tuple(one.exemplars or paths))
            yield Encoded(shape, one.encoding), counted


def _prompts(entries: Iterator[CountedPrompt], listed: list[Shape]) -> Iterator[PromptCount]:
    for entry in entries:
        if any(place >= len(listed) for place in entry.shapes):
            raise ValueError("a prompt has a shape that is not listed before it")
        shapes = tuple(listed[place] for place in entry.shapes)
        kept = entry.exemplar
        items = tuple(Item(item.path, item.declared) for item in kept.items)
        exemplar = Prompt(kept.origin, items, kept.text, kept.messages, kept.fields)
        asked = Asked(**dict(entry.asked)) if entry.asked else Asked(plain=False)
        yield PromptCount(PromptSignature(shapes, entry.text_chars, asked), entry.count, exemplar)
