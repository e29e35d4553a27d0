"""The version comes from git's tags, by every way to a wheel."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path

import pytest
from packaging.version import Version

from tests.conftest import ROOT
from tests.packaging.built import build, copy_of, version_of

TAGGED = "7.8.9"
IDENTITY = ("-c", "user.name=nobody", "-c", "user.email=nobody@example.org")


def git(folder: Path, *words: str) -> None:
    subprocess.run(["git", *IDENTITY, *words], cwd=folder, check=True, capture_output=True)


def fallback() -> Version:
    tools = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]
    return Version(tools["setuptools_scm"]["fallback_version"])


@pytest.fixture(scope="module")
def repository(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkout as a repository of one commit, without tags."""
    folder = copy_of(tmp_path_factory.mktemp("repository"))
    git(folder, "init")
    git(folder, "add", "--all")
    git(folder, "commit", "--message", "all")
    return folder


def test_without_tags_it_is_the_one_that_the_changelog_is_written_for() -> None:
    newest = re.search(r"^## \[([\d.]+)\]", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.M)
    assert newest is not None
    assert fallback().base_version == newest[1]
    assert fallback().is_devrelease


@pytest.mark.slow
def test_without_git_it_is_the_fallback(wheel: Path) -> None:
    assert version_of(wheel) == fallback()


@pytest.mark.slow
def test_a_commit_without_tags_is_named(repository: Path, tmp_path: Path) -> None:
    found = version_of(build("wheel", repository, tmp_path / "wheel"))
    assert (found.base_version, found.is_devrelease) == (fallback().base_version, True)
    assert str(found.local).startswith("g")


@pytest.mark.slow
def test_one_command_makes_both_of_a_tag(repository: Path, tmp_path: Path) -> None:
    """That of `make dist`, with the tools that are here: of the sdist, without git, the wheel."""
    assert re.search(r"^dist: .*\n(?:\t.*\n)*\t\$\(BIN\)/python -m build$", makefile(), re.M)
    git(repository, "tag", f"v{TAGGED}")
    try:
        done = subprocess.run(
            [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(tmp_path)],
            cwd=repository,
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        git(repository, "tag", "--delete", f"v{TAGGED}")
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    names = {f"mmcalib-{TAGGED}-py3-none-any.whl", f"mmcalib-{TAGGED}.tar.gz"}
    assert {path.name for path in tmp_path.iterdir()} == names
    with tarfile.open(tmp_path / f"mmcalib-{TAGGED}.tar.gz") as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    assert {"LICENSE", "THIRD_PARTY.md", "CHANGELOG.md", "docs/get-started.md"} <= held


def makefile() -> str:
    return (ROOT / "Makefile").read_text("utf-8")
