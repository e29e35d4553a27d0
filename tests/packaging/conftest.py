"""One wheel and one sdist of the checkout, and an index to install from."""

import importlib.metadata
import importlib.util
from pathlib import Path

import pytest

from tests.packaging.built import build, copy_of
from tests.programs import run_python


@pytest.fixture(scope="session")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy, as the backend writes beside what it builds."""
    recent = int(importlib.metadata.version("setuptools").partition(".")[0]) >= 77
    if not recent or importlib.util.find_spec("setuptools_scm") is None:
        pytest.skip(
            "needs setuptools 77 and setuptools-scm, as pyproject.toml has them: make setup"
        )
    return copy_of(tmp_path_factory.mktemp("checkout"))


@pytest.fixture(scope="session")
def wheel(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("wheel", checkout, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="session")
def sdist(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("sdist", checkout, tmp_path_factory.mktemp("sdist"))


@pytest.fixture(scope="session")
def index() -> None:
    """The index where pip finds packages; tests that install skip without it."""
    words = ["install", "--dry-run", "--ignore-installed", "--no-deps", "--retries", "0", "bracex"]
    done = run_python("-m", "pip", *words)
    if done.returncode != 0:
        pytest.skip("needs a package index that answers")
