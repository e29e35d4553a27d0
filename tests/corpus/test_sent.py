"""When requests were sent, by their lines."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mmcalib.corpus.chat import seconds_of
from mmcalib.corpus.requests import RequestsSource


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        (0, 0.0),
        (12.5, 12.5),
        ("12.5", 12.5),
        ("1970-01-01T00:01:00Z", 60.0),
        ("1970-01-01T01:01:00+01:00", 60.0),
        ("1970-01-01T00:01:00", 60.0),
        ("yesterday", None),
        ("nan", None),
        (True, None),
        (None, None),
        ([1], None),
        (10**400, None),
    ],
)
def test_a_timestamp(written: object, seconds: float | None) -> None:
    assert seconds_of(written) == seconds


def test_every_kind_of_line_may_have_one(tmp_path: Path) -> None:
    chat = {"messages": [{"role": "user", "content": "hello"}]}
    lines = [
        {**chat, "timestamp": 1},
        {"custom_id": "a", "timestamp": 2, "body": chat},
        {"prompt": "hello", "timestamp": "3"},
        chat,
    ]
    path = tmp_path / "r.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    source = RequestsSource(path, scratch=tmp_path)
    assert [text.sent_s for text in source.texts()] == [1.0, 2.0, 3.0, None]
