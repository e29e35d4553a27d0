"""A copy of the repository in which "How to add" of CONTRIBUTING is done, and its tests are run."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
# What git, `make` and tools leave in a checkout. mypy's cache goes with the copy, so that it reads
# again only what is changed.
NOT_COPIED = (
    *(".git", ".venv", ".pytest_cache", ".ruff_cache", ".hypothesis", "__pycache__"),
    *(".compat", "out", "sample", "sample-archives", "build", "dist", "*.egg-info"),
)
WITHIN_S = 540.0


@dataclass(frozen=True, slots=True)
class Copy:
    """One in `folder`, changed by `edit` and `write` alone."""

    folder: Path

    def write(self, name: str, text: str) -> None:
        """A new file, or all of an old one."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def edit(self, name: str, old: str, new: str) -> None:
        """`old`, which stands in the file once, becomes `new`."""
        path = self.folder / name
        text = path.read_text(encoding="utf-8")
        assert text.count(old) == 1, f"{name} holds {text.count(old)} times: {old}"
        path.write_text(text.replace(old, new), encoding="utf-8")

    def changed(self) -> set[str]:
        """The files of the package that are new or other than in the repository."""
        package = self.folder / "mmcalib"
        names = (str(path.relative_to(self.folder)) for path in package.rglob("*"))
        return {
            name
            for name in names
            if "__pycache__" not in name
            and (self.folder / name).is_file()
            and not _same(self.folder / name, ROOT / name)
        }

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """`python WORDS` in the copy, with the package that is there."""
        return subprocess.run(
            [sys.executable, *words],
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": str(self.folder), "COLUMNS": "100"},
            capture_output=True,
            text=True,
            timeout=WITHIN_S,
            check=False,
        )

    def mmcalib(self, *words: str) -> subprocess.CompletedProcess[str]:
        """The command line of the copy."""
        return self.run("-c", "from mmcalib.cli import main; main()", *words)

    def passes(self, *tests: str) -> None:
        """These tests of the copy pass, and there are some."""
        done = self.run("-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *tests)
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]


def copy_of(folder: Path) -> Copy:
    """A copy of what the repository holds, in a new folder inside `folder`."""
    ignore = shutil.ignore_patterns(*NOT_COPIED)
    return Copy(Path(shutil.copytree(ROOT, folder / "copy", ignore=ignore, symlinks=True)))


def _same(one: Path, other: Path) -> bool:
    return other.is_file() and one.read_bytes() == other.read_bytes()
