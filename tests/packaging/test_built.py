"""Builds hold all of the package, by every way to make them."""

import re
import shutil
import tarfile
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.packaging.built import build, contents, package_files
from tests.programs import run_program

pytestmark = pytest.mark.slow


def test_the_wheel_holds_every_file_of_the_package_and_nothing_else(wheel: Path) -> None:
    found = set(contents(wheel))
    assert {name for name in found if ".dist-info/" not in name} == package_files()
    licences = {name.partition("/licenses/")[2] for name in found if "/licenses/" in name}
    assert licences == {"LICENSE", "THIRD_PARTY.md"}


def test_git_carries_every_file_of_the_package_or_it_is_new() -> None:
    """One that git ignores is in a wheel of this machine only."""
    if not (ROOT / ".git").exists():
        pytest.skip("needs the repository")
    words = ("--others", "--ignored", "--exclude-standard", "mmcalib")
    done = run_program("git", "ls-files", *words, cwd=ROOT, check=True)
    assert set(done.stdout.splitlines()) & package_files() == set()


def test_the_sdist_builds_the_same_wheel(wheel: Path, sdist: Path, tmp_path: Path) -> None:
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    (source,) = tmp_path.iterdir()
    assert contents(build("wheel", source, tmp_path / "wheel")) == contents(wheel)


def test_what_the_container_copies_builds_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    """Each COPY of the Dockerfile, done by hand: the last word is the folder in the image."""
    root = tmp_path / "image"
    for line in re.findall(r"^COPY (.+)$", (ROOT / "Dockerfile").read_text(), re.M):
        *sources, target = line.split()
        folder = root / target.lstrip("/")
        folder.mkdir(parents=True, exist_ok=True)
        for name in sources:
            if (ROOT / name).is_dir():
                ignore = shutil.ignore_patterns("__pycache__")
                shutil.copytree(ROOT / name, folder, ignore=ignore, dirs_exist_ok=True)
            else:
                shutil.copy(ROOT / name, folder)
    built = build("wheel", root / "opt" / "mmcalib", tmp_path / "wheel")
    assert contents(built) == contents(wheel)
