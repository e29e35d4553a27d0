"""Wheels and sdists of the project, built by its own backend and without a network."""

import shutil
import zipfile
from pathlib import Path
from typing import Literal

from packaging.utils import parse_wheel_filename
from packaging.version import Version

from tests.conftest import ROOT
from tests.programs import run_python

Kind = Literal["sdist", "wheel"]
# What git, `make` and tools leave in a checkout.
NOT_COPIED = (
    *(".git", ".venv", ".pytest_cache", ".ruff_cache", ".mypy_cache", ".hypothesis", "__pycache__"),
    *(".compat", "out", "sample", "sample-archives", "build", "dist", "*.egg-info"),
)


def copy_of(folder: Path) -> Path:
    """A copy of what the repository holds, in a new folder inside `folder`."""
    ignore = shutil.ignore_patterns(*NOT_COPIED)
    return Path(shutil.copytree(ROOT, folder / "copy", ignore=ignore, symlinks=True))


def build(kind: Kind, source: Path, folder: Path) -> Path:
    """Build into `folder`; the backend writes into `source` too."""
    folder.mkdir(exist_ok=True)
    code = f"import sys; from setuptools import build_meta as b; b.build_{kind}(sys.argv[1])"
    # Without what the checkout has on the path: what is built is in `source`.
    done = run_python("-c", code, folder, cwd=source, env={"PATH": "/usr/bin:/bin"})
    assert done.returncode == 0, done.stderr[-2000:]
    (made,) = folder.iterdir()
    return made


def contents(wheel: Path) -> dict[str, int]:
    """The checksum of every file in the wheel, by its name."""
    with zipfile.ZipFile(wheel) as archive:
        return {entry.filename: entry.CRC for entry in archive.infolist()}


def version_of(wheel: Path) -> Version:
    return parse_wheel_filename(wheel.name)[1]


def package_files() -> set[str]:
    """Every file of the package in the checkout."""
    return {
        str(path.relative_to(ROOT))
        for path in (ROOT / "mmcalib").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
