"""What `--data` may name, by the command line: no engine, only headers."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest
from PIL import Image


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    """Two archives of five captioned pictures each, and one picture by itself."""
    folder = tmp_path / "shards"
    folder.mkdir()
    for shard in range(2):
        with tarfile.open(folder / f"{shard:03}.tar", "w") as archive:
            for number in range(5):
                picture = io.BytesIO()
                Image.new("L", (10 + number, 8)).save(picture, format="PNG")
                for name, data in ((".png", picture.getvalue()), (".txt", b"a caption")):
                    member = tarfile.TarInfo(f"{shard}{number}{name}")
                    member.size = len(data)
                    archive.addfile(member, io.BytesIO(data))
    Image.new("L", (9, 8)).save(folder / "alone.png")
    return folder


def counts(cli: Any, *data: str) -> dict[str, Any]:
    words = [word for one in data for word in ("--data", one)]
    ended = cli("scan", *words, "--json", "--quiet")
    assert ended.code == 0, ended.err
    found: dict[str, Any] = json.loads(ended.out)["corpus"]
    return {name: found[name] for name in ("items", "prompts", "skipped", "files")}


@pytest.mark.parametrize(
    ("data", "items", "prompts"),
    [
        (["shards"], 11, 10),
        (["shards/000.tar"], 5, 5),
        (["shards/{000..001}.tar"], 10, 10),
        (["shards/*.tar", "shards/alone.png"], 11, 10),
        (["shards/**/a*.png"], 1, 0),
        (["@list.txt"], 6, 5),
    ],
)
def test_sources(shards: Path, cli: Any, data: list[str], items: int, prompts: int) -> None:
    (shards.parent / "list.txt").write_text("shards/alone.png\nshards/001.tar\n")
    assert counts(cli, *data) == {"items": items, "prompts": prompts, "skipped": 0, "files": items}


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ("none/*.tar", "no file matches: "),
        ("@none.txt", "no such list of paths: "),
        ("shards/{000..002}.tar", "no such folder: "),
    ],
)
def test_what_is_missing_is_one_error(shards: Path, cli: Any, data: str, says: str) -> None:
    ended = cli("scan", "--data", data, "--quiet")
    assert (ended.code, ended.out) == (1, "")
    assert says in ended.err
    assert "try: " in ended.err
