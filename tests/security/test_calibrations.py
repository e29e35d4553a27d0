"""A calibration.json from somebody else: nothing of this machine gets into what is made of it, and
nothing in it is more than text.
"""

from __future__ import annotations

import os
import shutil
import tarfile
from pathlib import Path

import pytest
from example import calibration
from PIL import Image

from mmcalib.report.calibration import Calibration
from tests.cli.conftest import Cli

PICTURE = "data:image/"


def naming(exemplars: list[str]) -> Calibration:
    """The example, with these images alone."""
    found = calibration()
    assert found.costs is not None
    part = found.costs.modalities["image"]
    known = [part.known[0].model_copy(update={"exemplar": exemplar}) for exemplar in exemplars]
    parts = {"image": part.model_copy(update={"known": known})}
    return found.model_copy(update={"costs": found.costs.model_copy(update={"modalities": parts})})


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """What nobody meant to send on, and a corpus beside it."""
    for name in ("private.png", "media/a.png", "media-2/b.png"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        Image.new("RGB", (40, 30), "red").save(path)
    with tarfile.open(tmp_path / "private.tar", "w") as archive:
        archive.add(tmp_path / "private.png", "in/it.png")
    shutil.copy(tmp_path / "private.tar", tmp_path / "media" / "mine.tar")
    (tmp_path / "media" / "link.png").symlink_to(tmp_path / "private.png")
    (tmp_path / "media" / "out").symlink_to(tmp_path)
    os.link(tmp_path / "private.tar", tmp_path / "media-2" / "other.tar")
    (tmp_path / "foreign").mkdir()
    return tmp_path


def outside(home: Path) -> list[str]:
    return [
        f"{home}/private.png",
        "private.png",
        f"{home}/media/../private.png",
        f"{home}/media/link.png",
        f"{home}/media/out/private.png",
        f"{home}/media-2/b.png",
        f"tar://in/it.png::{home}/private.tar",
        f"tar://in/it.png::{home}/media/../private.tar",
        f"file://{home}/private.png",
        f"{home}/media/\0.png",
        f"{home}/media/\ud800.png",
    ]


def test_a_foreign_calibration_shows_no_local_file(cli: Cli, home: Path) -> None:
    naming([*outside(home), f"{home}/media/a.png"]).save(home / "foreign" / "calibration.json")
    said = cli("report", "foreign")
    assert said.code == 0
    assert PICTURE not in (home / "foreign" / "report.html").read_text("utf-8")
    assert "mmcalib report foreign --data DIR" in said.err
    assert len(said.err.splitlines()) == 2


def test_only_files_below_the_named_folders_are_shown(cli: Cli, home: Path) -> None:
    inside = [f"{home}/media/a.png", f"tar://in/it.png::{home}/media/mine.tar"]
    naming([*outside(home), *inside][-12:]).save(home / "foreign" / "calibration.json")
    said = cli("report", "foreign", "--data", "media")
    assert (home / "foreign" / "report.html").read_text("utf-8").count(PICTURE) == len(inside)
    assert "pictures left out" in said.err


@pytest.mark.parametrize("root", ["media/a.png", "media-link"])
def test_a_root_may_be_a_file_or_a_link_to_a_folder(cli: Cli, home: Path, root: str) -> None:
    (home / "media-link").symlink_to(home / "media")
    naming([f"{home}/media/a.png"]).save(home / "foreign" / "calibration.json")
    said = cli("report", "foreign", "--data", root)
    assert (home / "foreign" / "report.html").read_text("utf-8").count(PICTURE) == 1
    assert "left out" not in said.err


@pytest.mark.parametrize("words", [["--no-thumbnails"], ["--format", "md"]])
def test_nothing_is_said_where_nobody_wants_pictures(
    cli: Cli, home: Path, words: list[str]
) -> None:
    naming(outside(home)).save(home / "foreign" / "calibration.json")
    assert len(cli("report", "foreign", *words).err.splitlines()) == 1


def test_a_root_that_is_not_there_is_a_mistake(cli: Cli, home: Path) -> None:
    naming([]).save(home / "foreign" / "calibration.json")
    said = cli("report", "foreign", "--data", "nowhere")
    assert said.code == 2
    assert "--data nowhere: no such file or folder" in said.err
