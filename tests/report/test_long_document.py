"""A document read value by value says what `json` reads of it, wherever its blocks end."""

from __future__ import annotations

import io
import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmcalib.documents import MOST_CONTAINERS
from mmcalib.long_document import LongDocument

BLOCK = 1 << 20
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 99) | st.floats(0, 9) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
WHOLE = {"a": 12, "é": [1, "東京\ud800", {"x": [-2.5e3]}, 345], "b": None, "c": [], "d": {"e": {}}}


def document(text: str, most_bytes: int = 1 << 28) -> LongDocument:
    return LongDocument(io.BytesIO(text.encode()), most_bytes=most_bytes, most_entries=10)


def read(text: str) -> dict[str, Any]:
    one, found = document(text), {}
    for name in one.members():
        found[name] = list(one.entries()) if name in ("long", "é", "c") else one.value()
    return found


@given(st.dictionaries(st.text(), VALUES), st.lists(VALUES, max_size=9), st.integers(0, 2))
def test_it_says_what_json_reads(whole: dict[str, Any], long: list[Any], indent: int) -> None:
    said = {name: one for name, one in whole.items() if name not in ("é", "c")} | {"long": long}
    assert read(json.dumps(said, indent=indent or None)) == said
    assert read(" \n" + json.dumps(said, indent=indent) + "\t") == said


@pytest.mark.parametrize("escaped", [True, False])
def test_a_block_may_end_anywhere(escaped: bool) -> None:
    text = (
        json.dumps(WHOLE)
        if escaped
        else json.dumps(WHOLE | {"é": ["東京", 345]}, ensure_ascii=False)
    )
    size = len(text.encode())
    assert all(
        read(" " * (BLOCK - shift) + text + " " * (shift % 2)) == json.loads(text)
        for shift in range(size + 1)
    )


def test_a_value_may_be_longer_than_a_block() -> None:
    said = {"long": ["x" * (5 * BLOCK), "é" * BLOCK], "a": "y" * (3 * BLOCK)}
    assert read(json.dumps(said)) == said


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "no { at character 0"),
        ("[]", "no { at character 0"),
        ("\ufeff{}", "no { at character 0"),
        ("{} {}", "'{' stands behind the end at character 3"),
        ('{"a": 1', "no , or } at character 7"),
        ('{"a": 1,}', "Expecting value at character 8"),
        ('{"a": tru', "Expecting value at character 6"),
        ('{"a": "b', "Unterminated string"),
        ("{1: 2}", "no name at character 2"),
        ('{"a" 1}', "no : at character 5"),
        ('{"long": {}}', r"no \[ at character 9"),
        ('{"long": [1 2]}', r"no , or \] at character 12"),
        ('{"long": [1', r"no , or \] at character 11"),
        ('{"long": [%s]}' % ",".join("0" * 11), "more than 10 entries"),  # noqa: UP031
        ('{"a": 1, "a": 1}', "a key twice"),
        ('{"a": {"b": 1, "b": 1}}', "a key twice"),
        ('{"a": NaN}', "NaN is no number"),
        ('{"a": 1e999}', "too large"),
        ('{"long": [%s]}' % ('{"a":' * 50 + "0" + "}" * 50), "nested too deeply"),
        (json.dumps(dict.fromkeys(map(str, range(3000)))), "2,000 keys"),
        ('{"a": ' + " " * (BLOCK - 7) + '"' + " " * BLOCK, "Unterminated string"),
    ],
    ids=range(21),
)
def test_anything_else_is_refused_where_it_stands(text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        read(text)


def test_bytes_that_are_no_text_are_refused() -> None:
    one = LongDocument(io.BytesIO(b'{"a": "\xff"}'), most_bytes=99, most_entries=1)
    with pytest.raises(UnicodeDecodeError):
        list(one.members())


def test_no_more_is_read_than_was_allowed() -> None:
    endless = document(" " * (3 * BLOCK), most_bytes=2 * BLOCK)
    with pytest.raises(ValueError, match="larger than 2,097,152 bytes"):
        list(endless.members())


def test_what_would_fill_the_memory_is_refused_at_once() -> None:
    text = '{"a": [' + "[]," * (MOST_CONTAINERS + 1) + "[]]}"
    started = time.process_time()
    json.loads(text)
    parsed = time.process_time()
    with pytest.raises(ValueError, match="too many lists"):
        read(text)
    assert time.process_time() - parsed < 10 * (parsed - started)
