from __future__ import annotations

import os
from pathlib import Path

import pytest

from mmcalib.corpus.item import Item
from mmcalib.corpus.paths import PathsSource


def test_a_path_on_each_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    lines = [b"a.png\n", b"\n", b"/b/../c d .jpg\r\n", b"  \n", b"-x\n", b"/\xe9\n", b"last"]
    source = PathsSource(lines)
    assert list(source.items()) == [
        Item(str(tmp_path / "a.png")),
        Item("/c d .jpg"),
        Item(str(tmp_path / "-x")),
        Item(os.fsdecode(b"/\xe9")),
        Item(str(tmp_path / "last")),
    ]
    assert list(source.prompts()) == []
