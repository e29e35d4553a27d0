"""The version comes from git's tags, by every way to a wheel; what comes from elsewhere is said."""

import importlib.metadata
import re
import subprocess
import tarfile
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest
from packaging.version import Version

from mmcalib.models.catalogue import bundled_models
from tests.builders import some
from tests.conftest import ROOT
from tests.packaging.built import build, copy_of, version_of
from tests.programs import run_python

from .third_party import BROUGHT, DATA, FACTS, PAGE, data_files, dependencies, page

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
    assert fallback().base_version == some(newest)[1]
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
    makefile = (ROOT / "Makefile").read_text("utf-8")
    assert re.search(r"^dist: .*\n(?:\t.*\n)*\t\$\(BIN\)/python -m build$", makefile, re.M)
    git(repository, "tag", f"v{TAGGED}")
    try:
        done = run_python("-m", "build", "--no-isolation", "--outdir", tmp_path, cwd=repository)
    finally:
        git(repository, "tag", "--delete", f"v{TAGGED}")
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    names = {f"mmcalib-{TAGGED}-py3-none-any.whl", f"mmcalib-{TAGGED}.tar.gz"}
    assert {path.name for path in tmp_path.iterdir()} == names
    with tarfile.open(tmp_path / f"mmcalib-{TAGGED}.tar.gz") as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    assert {"LICENSE", "THIRD_PARTY.md", "CHANGELOG.md", "docs/get-started.md"} <= held


def test_the_page_is_written_anew() -> None:
    assert PAGE.read_text("utf-8") == page(), "python -m tests.packaging.third_party"


def test_every_file_that_is_no_code_is_on_it_and_no_other() -> None:
    there = data_files()
    assert {name for name in there if not any(fnmatch(name, p) for p in DATA)} == set()
    assert {pattern for pattern in DATA if not any(fnmatch(n, pattern) for n in there)} == set()


def test_every_geometry_is_named() -> None:
    text = PAGE.read_text("utf-8")
    assert [g.id for g in bundled_models() if f"`{g.id}`" not in text] == []
    assert len(bundled_models()) == sum(fnmatch(name, FACTS) for name in data_files())


def test_every_dependency_has_the_licence_of_its_metadata() -> None:
    assert set(BROUGHT) == set(dependencies())
    for name, licence in BROUGHT.items():
        metadata = importlib.metadata.metadata(name)
        keys = ("License-Expression", "License", "Classifier")
        stated = " ".join(said for key in keys for said in metadata.get_all(key, []))
        family = licence.partition(";")[0].removesuffix("-3-Clause").removesuffix("-CMU")
        assert family in stated, (name, stated[:200])
