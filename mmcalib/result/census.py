"""What `census.json` may say: the shapes of a corpus, or of parts of it."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, FailFast, Field, model_validator

from mmcalib.census.census import Census
from mmcalib.census.prompts import PromptCensus
from mmcalib.corpus.shard import Shard
from mmcalib.domain.encoding import Encoding
from mmcalib.domain.seen import is_encoding
from mmcalib.domain.shapes import AudioShape, ImageShape, Modality, VideoShape
from mmcalib.result.part import DocumentPart
from mmcalib.result.positive import POSITIVE

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


def _possible(encoding: Encoding) -> Encoding:
    if not is_encoding(encoding):
        raise ValueError("not an encoding")
    return encoding


class CountedEncoding(DocumentPart):
    """So many items of a shape are in files that hold it so: what a server may refuse them for.
    The paths of a sole one are those of the shape.
    """

    encoding: Annotated[Encoding, AfterValidator(_possible)]
    count: Count
    exemplars: Annotated[list[str], FailFast()] = Field(default_factory=list)


class _Counted(DocumentPart):
    """So many items have a shape; its `encodings` are left out where all are ordinary pictures."""

    count: Count
    exemplars: Annotated[list[str], FailFast()]
    encodings: list[CountedEncoding] = Field(default_factory=list)

    @model_validator(mode="after")
    def _adds_up(self) -> Self:
        if self.encodings and sum(one.count for one in self.encodings) != self.count:
            raise ValueError("the counts of its encodings are not its count")
        return self


class CountedImage(_Counted):
    modality: Literal["image"]
    shape: Annotated[ImageShape, POSITIVE]


class CountedVideo(_Counted):
    modality: Literal["video"]
    shape: Annotated[VideoShape, POSITIVE]


class CountedAudio(_Counted):
    modality: Literal["audio"]
    shape: Annotated[AudioShape, POSITIVE]


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
    def _shards_are_few(self) -> Self:
        sizes = {Shard.parse(words).of for words in self.shards}
        if sum(sizes) > _MOST_SHARDS:
            raise ValueError(f"shards of more than {_MOST_SHARDS:,}")
        return self


class Counts(DocumentPart):
    """What `scan --json` and `merge --json` print: a part of census.json."""

    shards: list[str]
    corpus: ScannedCorpus


def totals(
    census: Census, prompts: PromptCensus
) -> tuple[int, int, dict[Modality, ScannedModality]]:
    """Items, prompts, and what there is of each modality."""
    modalities = {
        modality: ScannedModality(
            items=census.items(modality), unique_shapes=len(census.counts(modality))
        )
        for modality in census.modalities()
    }
    return census.items(), prompts.prompts(), modalities
