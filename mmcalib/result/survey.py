"""A census as it is kept: `census.json` is written from it, and read into it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import groupby

from mmcalib.census.census import Census
from mmcalib.census.prompts import PromptCensus, PromptCount
from mmcalib.corpus.shard import Shard
from mmcalib.domain.asked import Asked
from mmcalib.domain.encoding import told
from mmcalib.domain.shape_codec import to_fields
from mmcalib.domain.shapes import Shape
from mmcalib.errors import UsageError
from mmcalib.result.census import (
    SCHEMA_VERSION,
    Counts,
    ScannedCorpus,
    ScanTool,
    totals,
)
from mmcalib.version import __version__

_ASKED = tuple(field.name for field in fields(Asked))


@dataclass(frozen=True, slots=True)
class Survey:
    """What `CensusDocument` says, with its lists as they were counted: memory does not grow by the
    size of the file. The fields of the same names are the document's.
    """

    tool: ScanTool
    shards: list[str]
    corpus: ScannedCorpus
    census: Census
    requests: PromptCensus

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
    ) -> Survey:
        """The survey of these counts."""
        items, requests, modalities = totals(census, prompts)
        corpus = ScannedCorpus(
            items=items,
            prompts=requests,
            files=files,
            skipped=skipped,
            modalities=modalities,
            distinct=distinct or None,
        )
        tool = ScanTool(mmcalib=sorted(set(versions)))
        return cls(tool, [str(shard) for shard in sorted(shards)], corpus, census, prompts)

    @property
    def counts(self) -> Counts:
        return Counts(shards=self.shards, corpus=self.corpus)

    def to_json(self) -> Iterator[str]:
        """`census.json`, piece by piece: one line for each shape and prompt. The same bytes for the
        same corpus, in whatever order it was read or merged. Bytes of a name that are not UTF-8
        stay as escapes.
        """
        head = {
            "schema_version": SCHEMA_VERSION,
            "tool": self.tool.model_dump(),
            "shards": self.shards,
            "corpus": self.corpus.model_dump(),
        }
        yield "{\n"
        for name, value in head.items():
            yield f"{json.dumps(name)}: {json.dumps(value)},\n"
        places = {entry.shape: place for place, entry in enumerate(self.census.shapes())}
        yield from _listed("shapes", _shapes(self.census))
        yield ",\n"
        found = self.requests.signatures()
        yield from _listed("prompts", (_prompt(entry, places) for entry in found))
        yield "\n}\n"


def merged(surveys: Iterable[Survey]) -> Survey:
    """The survey of all their corpora together; of those that were taken their requests are let go.
    Raises UsageError where a shard is there twice, and for no surveys at all.
    """
    requests = PromptCensus()
    taken: list[Survey] = []
    for survey in surveys:
        requests.update(survey.requests.signatures())
        taken.append(replace(survey, requests=PromptCensus()))
    if not taken:
        raise UsageError("nothing to merge", hint="mmcalib merge CENSUS.json... --out DIR")
    census = taken[0].census
    if len(taken) > 1:
        census = Census.of_encoded(entry for one in taken for entry in one.census.encoded())
    return Survey.of(
        census,
        requests,
        files=sum(one.corpus.files for one in taken),
        skipped=sum(one.corpus.skipped for one in taken),
        shards=_together(shard for one in taken for shard in one.shards),
        versions=(version for one in taken for version in one.tool.mmcalib),
    )


def missing(shards: Sequence[str]) -> list[str]:
    """The shards that make a whole of those that are there."""
    there = {Shard.parse(words) for words in shards}
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


def _listed(name: str, entries: Iterable[Mapping[str, object]]) -> Iterator[str]:
    """A list with a line for each of its entries."""
    begin = f"{json.dumps(name)}: [\n"
    end = f"{json.dumps(name)}: []"
    for entry in entries:
        yield f"{begin}{json.dumps(entry)}"
        begin, end = ",\n", "\n]"
    yield end


def _shapes(census: Census) -> Iterator[dict[str, object]]:
    held = groupby(census.encoded(), key=lambda one: one[0].shape)
    for entry, (_, each) in zip(census.shapes(), held, strict=True):
        said: dict[str, object] = {
            "modality": entry.shape.modality,
            "shape": to_fields(entry.shape),
            "count": entry.count,
            "exemplars": list(entry.exemplars),
        }
        encodings = [(told(file.encoding), found) for file, found in each]
        if any(encoding for encoding, _ in encodings):
            said["encodings"] = [
                {
                    "encoding": encoding,
                    "count": found.count,
                    # Those of a sole one are above.
                    **({"exemplars": list(found.exemplars)} if len(encodings) > 1 else {}),
                }
                for encoding, found in encodings
            ]
        yield said


def _prompt(entry: PromptCount, places: Mapping[Shape, int]) -> dict[str, object]:
    kept = entry.exemplar
    return {
        "shapes": [places[shape] for shape in entry.signature.shapes],
        "text_chars": entry.signature.text_chars,
        "asked": {name: getattr(entry.signature.asked, name) for name in _ASKED},
        "count": entry.count,
        "exemplar": {
            "origin": kept.origin,
            "items": [{"path": i.path, "declared": i.declared} for i in kept.items],
            "text": kept.text,
            "messages": kept.messages,
            "fields": kept.fields,
        },
    }
