"""Members of archives as files, for an engine that loads nothing else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from mmcalib.corpus.archives import archive_at
from mmcalib.corpus.item import Prompt
from mmcalib.job.copies import local, local_messages
from tests.corpus.tars import png, tar

NO_ROOM = """
import resource, sys
from mmcalib.errors import OutputError
from mmcalib.job.copies import local
resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10))
try:
    local(sys.argv[1])
except OutputError as error:
    print(error.message, error.hint, sep="\\n")
"""


def files_of(prompt: Prompt) -> list[bytes]:
    """What the engine would read for the media of a prompt."""
    found = []
    for message in local_messages(prompt.messages):
        parts = message["content"]
        assert isinstance(parts, list)
        for part in parts:
            if part["type"] != "text":
                url = urlsplit(part[part["type"]]["url"])
                assert url.scheme == "file"
                found.append(Path(url.path).read_bytes())
    return found


def only_prompt(path: Path) -> Prompt:
    source = archive_at(str(path))
    assert source is not None
    (prompt,) = source.prompts()
    assert isinstance(prompt, Prompt)
    return prompt


def test_members_of_a_shard_become_files(tmp_path: Path) -> None:
    shard = tar(tmp_path / "a.tar", ("x.a.png", png(9)), ("x.b.png", png(7)), ("x.txt", b"words"))
    assert files_of(only_prompt(shard)) == [png(9), png(7)]


def test_cells_of_a_table_become_files(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    cells = [{"bytes": png(width), "path": None} for width in (9, 7)]
    table = arrow.table({"prompt": ["words"], "images": [cells]})
    parquet.write_table(table, tmp_path / "a.parquet")
    assert files_of(only_prompt(tmp_path / "a.parquet")) == [png(9), png(7)]


def test_a_file_is_not_copied(tmp_path: Path) -> None:
    assert local(str(tmp_path / "a.png")) == str(tmp_path / "a.png")


def test_what_went_away_keeps_its_name(tmp_path: Path) -> None:
    gone = f"tar://a.png::{tmp_path}/none.tar"
    assert local(gone) == gone


def test_no_room_for_copies_says_where_they_lie(tmp_path: Path) -> None:
    shard = tar(tmp_path / "a.tar", ("a.png", png(99)))
    command = [sys.executable, "-c", NO_ROOM, f"tar://a.png::{shard}"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    message, hint = done.stdout.splitlines()
    assert message.startswith("cannot write a copy of media: ")
    assert message.endswith("File too large")
    assert hint == "TMPDIR=DIR"
