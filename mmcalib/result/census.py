"""`census.json`: the shapes of a corpus, or of parts of it, such that such files add up."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Annotated, Any, Final, Literal, Self

from pydantic import FailFast, Field, model_validator

from mmcalib.census.census import Census, ShapeCount
from mmcalib.census.prompts import PromptCensus, PromptCount
from mmcalib.census.signature import PromptSignature
from mmcalib.corpus.shard import Shard
from mmcalib.domain.asked import Asked
from mmcalib.domain.items import Item, Prompt
from mmcalib.domain.shapes import AudioShape, ImageShape, Modality, Shape, VideoShape
from mmcalib.errors import UsageError
from mmcalib.result.part import DocumentPart
from mmcalib.result.positive import POSITIVE
from mmcalib.version import __version__

SCHEMA_VERSION: Final = 1

# Those that are missing are listed.
_MOST_SHARDS: Final = 1_000_000

Count = Annotated[int, Field(ge=1)]
Number = Annotated[int, Field(ge=0)]


class ScanTool(DocumentPart):
    """The versions of mmcalib that read the files."""

    mmcalib: list[str]


class ScannedModality(DocumentPart):
    items: Count
    unique_shapes: Count


class ScannedCorpus(DocumentPart):
    """With requests, every mention of an item counts. `files` are the paths that were found,
    `skipped` the files and requests that could not be used. So many items are `distinct` in
    content, if that was asked for; it does not add up over parts.
    """

    items: Number
    prompts: Number
    files: Number
    skipped: Number
    modalities: dict[Modality, ScannedModality]
    distinct: Count | None = None


class CountedImage(DocumentPart):
    modality: Literal["image"]
    shape: Annotated[ImageShape, POSITIVE]
    count: Count
    exemplars: Annotated[list[str], FailFast()]


class CountedVideo(DocumentPart):
    modality: Literal["video"]
    shape: Annotated[VideoShape, POSITIVE]
    count: Count
    exemplars: list[str]


class CountedAudio(DocumentPart):
    modality: Literal["audio"]
    shape: Annotated[AudioShape, POSITIVE]
    count: Count
    exemplars: list[str]


CountedShape = Annotated[
    CountedImage | CountedVideo | CountedAudio, Field(discriminator="modality")
]


class ExemplarItem(DocumentPart):
    path: str
    declared: Modality | None


class ExemplarPrompt(DocumentPart):
    """One whole request, such that it can be asked again."""

    origin: str
    items: list[ExemplarItem]
    text: str
    messages: list[dict[str, Any]]
    fields: dict[str, Any] = Field(default_factory=dict)


class AskedText(DocumentPart):
    """As `Asked`: messages, bytes of text and of the JSON of tools, tokens of the answer."""

    messages: Number
    text_bytes: Number
    tool_bytes: Number = 0
    answer_tokens: Number | None = None
    plain: bool = True
    least_answer_tokens: Number = 0


class CountedPrompt(DocumentPart):
    """`count` requests hold items of these `shapes`, by their places in the list of shapes, and
    as many characters of text. `asked` is what they ask of the context; None in files of earlier
    versions, where nothing bounds it.
    """

    shapes: list[Number]
    text_chars: Number
    asked: AskedText | None = None
    count: Count
    exemplar: ExemplarPrompt


class CensusDocument(DocumentPart):
    """The same bytes for the same corpus, in whatever order it was read or merged.

    `shards` are the parts that it is made of, empty for a whole corpus.
    """

    schema_version: Literal[1] = SCHEMA_VERSION
    tool: ScanTool
    shards: Annotated[list[str], FailFast()]
    corpus: ScannedCorpus
    shapes: Annotated[list[CountedShape], FailFast()]
    prompts: Annotated[list[CountedPrompt], FailFast()]

    @model_validator(mode="after")
    def _adds_up(self) -> Self:
        sizes = {Shard.parse(words).of for words in self.shards}
        if sum(sizes) > _MOST_SHARDS:
            raise ValueError(f"shards of more than {_MOST_SHARDS:,}")
        if any(place >= len(self.shapes) for entry in self.prompts for place in entry.shapes):
            raise ValueError("a prompt has a shape that is not listed")
        found = self.corpus
        if (found.items, found.prompts, found.modalities) != _totals(self.census, self.requests):
            raise ValueError("the counts of the corpus are not those of its shapes and prompts")
        return self

    @classmethod
    def of(
        cls,
        census: Census,
        prompts: PromptCensus,
        *,
        files: int,
        skipped: int,
        distinct: int | None = None,
        shards: Iterable[Shard] = (),
        versions: Iterable[str] = (__version__,),
    ) -> CensusDocument:
        """The document of these counts."""
        places = {entry.shape: place for place, entry in enumerate(census.shapes())}
        items, requests, modalities = _totals(census, prompts)
        return cls.model_validate(
            {
                "tool": ScanTool(mmcalib=sorted(set(versions))),
                "shards": [str(shard) for shard in sorted(shards)],
                "corpus": ScannedCorpus(
                    items=items,
                    prompts=requests,
                    files=files,
                    skipped=skipped,
                    modalities=modalities,
                    distinct=distinct or None,
                ),
                "shapes": census.to_json()["shapes"],
                "prompts": [_counted(entry, places) for entry in prompts.signatures()],
            }
        )

    @property
    def census(self) -> Census:
        return Census(
            ShapeCount(entry.shape, entry.count, tuple(entry.exemplars)) for entry in self.shapes
        )

    @property
    def requests(self) -> PromptCensus:
        return PromptCensus(self._signatures())

    def _signatures(self) -> Iterator[PromptCount]:
        for entry in self.prompts:
            shapes = tuple(self.shapes[place].shape for place in entry.shapes)
            kept = entry.exemplar
            items = tuple(Item(item.path, item.declared) for item in kept.items)
            exemplar = Prompt(kept.origin, items, kept.text, kept.messages, kept.fields)
            asked = Asked(**dict(entry.asked)) if entry.asked else Asked(plain=False)
            signature = PromptSignature(shapes, entry.text_chars, asked)
            yield PromptCount(signature, entry.count, exemplar)

    def to_json(self) -> str:
        """One line for each shape and prompt. Bytes of a name that are not UTF-8 stay as
        escapes.
        """
        whole = self.model_dump()
        lists = {name: whole.pop(name) for name in ("shapes", "prompts")}
        lines = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in whole.items()]
        for name, entries in lists.items():
            listed = ",\n".join(json.dumps(entry) for entry in entries)
            lines.append(f"{json.dumps(name)}: [\n{listed}\n]" if listed else f'"{name}": []')
        return "{\n" + ",\n".join(lines) + "\n}\n"


class Counts(DocumentPart):
    """What `scan --json` and `merge --json` print: a part of census.json."""

    shards: list[str]
    corpus: ScannedCorpus

    @classmethod
    def of(cls, document: CensusDocument) -> Self:
        return cls(shards=document.shards, corpus=document.corpus)


def merged(documents: Sequence[CensusDocument]) -> CensusDocument:
    """The document of all their corpora together. Raises UsageError where a shard is there twice,
    and for no documents at all.
    """
    if not documents:
        raise UsageError("nothing to merge", hint="mmcalib merge CENSUS.json... --out DIR")
    return CensusDocument.of(
        Census(entry for document in documents for entry in document.census.shapes()),
        PromptCensus(e for document in documents for e in document.requests.signatures()),
        files=sum(document.corpus.files for document in documents),
        skipped=sum(document.corpus.skipped for document in documents),
        shards=_together(shard for document in documents for shard in document.shards),
        versions=(version for document in documents for version in document.tool.mmcalib),
    )


def missing(document: CensusDocument) -> list[str]:
    """The shards that make a whole of those that are there."""
    there = {Shard.parse(words) for words in document.shards}
    whole = {Shard(of, index) for of in {s.of for s in there} for index in range(1, of + 1)}
    return [str(shard) for shard in sorted(whole - there)]


def _together(shards: Iterable[str]) -> set[Shard]:
    """All of them, without those that make a whole."""
    there: set[Shard] = set()
    for shard in map(Shard.parse, shards):
        if shard in there:
            raise UsageError(
                f"shard {shard} is there twice",
                hint="merge the shards of each corpus by themselves",
            )
        there.add(shard)
    sizes = Counter(shard.of for shard in there)
    return {shard for shard in there if sizes[shard.of] < shard.of}


def _totals(
    census: Census, prompts: PromptCensus
) -> tuple[int, int, dict[Modality, ScannedModality]]:
    modalities = {
        modality: ScannedModality(
            items=census.items(modality), unique_shapes=sum(1 for _ in census.shapes(modality))
        )
        for modality in census.modalities()
    }
    return census.items(), prompts.prompts(), modalities


def _counted(entry: PromptCount, places: dict[Shape, int]) -> dict[str, object]:
    kept = entry.exemplar
    return {
        "shapes": [places[shape] for shape in entry.signature.shapes],
        "text_chars": entry.signature.text_chars,
        "asked": asdict(entry.signature.asked),
        "count": entry.count,
        "exemplar": {
            "origin": kept.origin,
            "items": [{"path": i.path, "declared": i.declared} for i in kept.items],
            "text": kept.text,
            "messages": kept.messages,
            "fields": kept.fields,
        },
    }
