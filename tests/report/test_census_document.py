"""`census.json`: exact both ways, the same bytes in any order, and adding up."""

from __future__ import annotations

import io
import json
import os
import tracemalloc
from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmcalib.census.census import Census
from mmcalib.census.prompts import PromptCensus
from mmcalib.corpus.shard import Shard
from mmcalib.domain.encoding import PLAIN, Encoding
from mmcalib.domain.items import Item, Prompt
from mmcalib.domain.shapes import AudioShape, ImageShape, Shape, VideoShape
from mmcalib.errors import UsageError
from mmcalib.long_document import LongDocument
from mmcalib.result.census import CensusDocument, ScanTool
from mmcalib.result.census_reading import read_census, read_survey
from mmcalib.result.survey import Survey, merged, missing

SMALL = st.integers(1, 3)
NAMES = st.sampled_from(["/a", "/b", "/ü", "/c\nd", os.fsdecode(b"/\xe9")])
SHAPES: st.SearchStrategy[Shape] = st.one_of(
    st.builds(ImageShape, SMALL, SMALL),
    st.builds(VideoShape, SMALL, st.floats(1, 60), st.just(2.0), SMALL, SMALL),
    st.builds(AudioShape, SMALL, st.sampled_from([8000, 16000])),
)
ENCODINGS = st.builds(Encoding, st.integers(1, 2), st.sampled_from(["", "h264"]))
FILES = st.lists(st.tuples(SHAPES, NAMES, ENCODINGS), max_size=8)
ASKED = st.tuples(
    st.lists(st.tuples(SHAPES, NAMES), max_size=3), st.sampled_from(["", "é", "why?"]), NAMES
)
CORPORA = st.tuples(FILES, st.lists(ASKED, max_size=4), SMALL)


def document(*corpora: tuple[Any, ...], shards: Iterable[Shard] = ()) -> Survey:
    census, prompts = Census(), PromptCensus()
    for files, requests, _ in corpora:
        for shape, path, *encoding in files:
            census.add(shape, path, 1, *encoding)
        for items, text, origin in requests:
            for shape, path in items:
                census.add(shape, path)
            named = tuple(Item(path, shape.modality) for shape, path in items)
            messages: list[dict[str, object]] = [{"role": origin, "content": [text, text[:1]]}]
            prompts.add((shape for shape, _ in items), Prompt("r:1", named, text, messages))
    skipped = sum(skipped for *_, skipped in corpora)
    return Survey.of(census, prompts, files=3 * skipped, skipped=skipped, shards=shards)


def text(survey: Survey) -> str:
    return "".join(survey.to_json())


def read(written: str) -> Survey:
    file = io.BytesIO(written.encode())
    return read_survey(LongDocument(file, most_bytes=1 << 20, most_entries=100))


@given(CORPORA, CORPORA)
def test_the_documents_of_two_corpora_make_the_document_of_both(a, b) -> None:
    whole = document(a, b)
    assert merged([document(a), document(b)]) == whole
    assert text(merged([document(b), document(a)])) == text(whole)


@given(CORPORA, CORPORA, CORPORA)
def test_merging_is_associative(a, b, c) -> None:
    one, two, three = map(document, (a, b, c))
    whole = text(merged([merged([one, two]), three]))
    assert whole == text(merged([one, merged([two, three])]))
    assert whole == text(merged([three, one, two]))
    assert text(merged([one])) == text(one)


@given(CORPORA)
def test_what_is_written_is_read(a) -> None:
    made = document(a)
    again = read(text(made))
    assert again == made
    assert list(again.census.encoded()) == list(made.census.encoded())
    assert text(again) == text(made)
    # However it is laid out.
    assert read(json.dumps(json.loads(text(made)), indent=3)) == made
    # Pydantic writes the same of what it reads, field by field.
    checked = CensusDocument.model_validate(json.loads(text(made)))
    said = json.loads(text(made))
    assert checked.model_dump(exclude_unset=True) == _with_every_field(said)


def _with_every_field(document: dict[str, Any]) -> dict[str, Any]:
    """Of encodings, of which only what is not plain is written."""
    for shape in document["shapes"]:
        for one in shape.get("encodings", ()):
            one["encoding"] = asdict(PLAIN) | one["encoding"]
    return document


A: tuple[Any, ...] = (
    [(ImageShape(2, 1), "/a.jpg")],
    [([(ImageShape(2, 1), "/a.jpg")], "why?", "user")],
    1,
)


def test_the_text() -> None:
    written = text(document(A))
    parsed = json.loads(written)
    assert list(parsed) == ["schema_version", "tool", "shards", "corpus", "shapes", "prompts"]
    assert parsed["corpus"] == {
        "items": 2,
        "prompts": 1,
        "distinct": None,
        "files": 3,
        "skipped": 1,
        "modalities": {"image": {"items": 2, "unique_shapes": 1}},
    }
    assert (
        '\n{"modality": "image", "shape": {"width_px": 2, "height_px": 1}, "count": 2, ' in written
    )
    assert parsed["prompts"] == [
        {
            "shapes": [0],
            "text_chars": 4,
            "asked": {
                "messages": 1,
                "text_bytes": 11,
                "tool_bytes": 0,
                "answer_tokens": None,
                "plain": True,
                "least_answer_tokens": 0,
            },
            "count": 1,
            "exemplar": {
                "origin": "r:1",
                "items": [{"path": "/a.jpg", "declared": "image"}],
                "text": "why?",
                "messages": [{"role": "user", "content": ["why?", "w"]}],
                "fields": {},
            },
        }
    ]


def test_shards_that_make_a_whole_are_one() -> None:
    one, two, three = (document(A, shards=[Shard(3, n)]) for n in (1, 2, 3))
    some = merged([three, one])
    assert some.shards == ["1/3", "3/3"]
    assert missing(some.shards) == ["2/3"]
    whole = merged([some, two])
    assert (whole.shards, missing(whole.shards)) == ([], [])
    other = document(A, shards=[Shard(2, 1)])
    assert missing(merged([some, other]).shards) == ["2/2", "2/3"]


def test_a_shard_is_not_counted_twice() -> None:
    one = document(A, shards=[Shard(3, 1)])
    with pytest.raises(UsageError, match="shard 1/3 is there twice"):
        merged([one, document(A, shards=[Shard(3, 2)]), one])
    with pytest.raises(UsageError, match="nothing to merge"):
        merged([])


def test_all_versions_that_read_are_named() -> None:
    old = replace(document(A), tool=ScanTool(mmcalib=["0.0.9"]))
    assert len(merged([old, document(A)]).tool.mmcalib) == 2


def test_what_is_read_takes_no_more_than_it_holds(tmp_path: Path) -> None:
    kinds = 5_000
    made = document(([], [([], "x" * length, "user") for length in range(kinds)], 0))
    (tmp_path / "census.json").write_text(text(made))
    tracemalloc.start()
    try:
        found = read_census(tmp_path / "census.json")
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found.requests.prompts() == kinds
    assert peak_bytes < 12 << 20


def test_shapes_stand_before_their_prompts(tmp_path: Path) -> None:
    sorted_names = json.dumps(json.loads(text(document(A))), sort_keys=True)
    (tmp_path / "census.json").write_text(sorted_names)
    with pytest.raises(UsageError, match="a shape that is not listed before it"):
        read_census(tmp_path / "census.json")


def spoilt(**changes: object) -> str:
    return json.dumps({**json.loads(text(document(A))), **changes})


@pytest.mark.parametrize(
    ("said", "says"),
    [
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", "not a census"),
        ("{}", "Field required"),
        (spoilt(schema_version=2), "schema_version"),
        (spoilt(shapes=[]), "a shape that is not listed"),
        (spoilt(prompts=[]), "not those of its shapes"),
        (spoilt(extra=1), "extra"),
        (spoilt(shards=["4/3"]), "no such shard"),
    ],
)
def test_anything_else_is_refused(tmp_path: Path, said: str, says: str) -> None:
    (tmp_path / "census.json").write_text(said)
    with pytest.raises(UsageError, match=says) as caught:
        read_census(tmp_path / "census.json")
    assert caught.value.hint
    with pytest.raises(UsageError, match="cannot read"):
        read_census(tmp_path / "none.json")
