"""The wheel, installed: in an environment of its own, and beside the vLLM that is here."""

import importlib.metadata
import json
import os
import re
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from PIL import Image

from mmcalib.version import BUILDS, installed_version
from tests.packaging.built import version_of
from tests.programs import run_program, run_python
from tests.schemas import CALIBRATION

# With all that pip brings along, and byte code.
MOST_BYTES = 300_000_000
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("index")]


def environment(folder: Path) -> Path:
    """The interpreter of a new one, without pip: the one that runs this fills it."""
    venv.create(folder)
    return folder / "bin" / "python"


def pip_install(python: Path, *words: str | Path) -> None:
    # The checkout, on the path of the tests, may hold the metadata of an editable installation.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    pip = ("-m", "pip", "--python", python, "install", "--no-input", "--quiet")
    done = run_python(*pip, *words, env=env)
    assert done.returncode == 0, done.stderr[-2000:]


def test_alone_it_brings_all_that_it_needs(wheel: Path, tmp_path: Path) -> None:
    python = environment(tmp_path / "environment")
    pip_install(python, wheel)
    media = tmp_path / "media"
    media.mkdir()
    Image.new("RGB", (640, 480)).save(media / "a.jpg")
    Image.new("RGB", (1280, 720)).save(media / "b.png")

    def mmcalib(*words: str) -> str:
        env = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "COLUMNS": "80"}
        done = run_program(python.with_name("mmcalib"), *words, cwd=tmp_path, env=env)
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout

    assert mmcalib("--version").split() == ["mmcalib", str(version_of(wheel))]
    assert "calibrat" in mmcalib("--help")
    assert "Qwen/Qwen2.5-VL-3B-Instruct" in mmcalib("list", "models")
    census = json.loads(mmcalib("scan", "--data", "media", "--json", "--quiet"))
    assert census["corpus"]["modalities"] == {"image": {"items": 2, "unique_shapes": 2}}
    checked = mmcalib("check", "--calibration", str(CALIBRATION), "media", "--json")
    assert json.loads(checked)["fits"] == 2
    installed_bytes = sum(
        file.stat().st_size
        for file in (tmp_path / "environment" / "lib").rglob("*")
        if file.is_file() and not file.is_symlink()
    )
    assert installed_bytes < MOST_BYTES


@pytest.mark.engine
def test_beside_vllm_nothing_that_it_brought_is_changed(wheel: Path, tmp_path: Path) -> None:
    """pip decides in an environment with the metadata of vLLM and its dependencies, no mmcalib."""
    build = next((name for name in BUILDS if installed_version(name)), None)
    if build is None:
        pytest.skip("needs vLLM: make setup")
    python = environment(tmp_path / "environment")
    (site,) = (tmp_path / "environment").glob("lib/python*/site-packages")
    brought = dict(needed(build, set()))
    for found in brought.values():
        folder = Path(str(found.locate_file(""))) / directory(found)
        (site / folder.name).symlink_to(folder)
    report = tmp_path / "report.json"
    pip_install(python, "--dry-run", "--report", report, wheel)
    added = {
        canonicalize_name(one["metadata"]["name"]): one["metadata"]["version"]
        for one in json.loads(report.read_text())["install"]
    }
    assert {"mmcalib", "bracex"} <= set(added)
    assert {"torch", "transformers", "pillow", "pydantic", build} <= set(brought)
    assert {name: version for name, version in added.items() if name in brought} == {}


def needed(
    name: str, seen: set[str], extra: str = ""
) -> Iterator[tuple[str, importlib.metadata.Distribution]]:
    """A package that is installed here and all that it needs, by their canonical names."""
    found = importlib.metadata.distribution(name)
    seen.add(f"{name}[{extra}]")
    yield name, found
    for line in found.requires or []:
        wanted = Requirement(line)
        if wanted.marker is not None and not wanted.marker.evaluate({"extra": extra}):
            continue
        for one in ("", *wanted.extras):
            other = canonicalize_name(wanted.name)
            if f"{other}[{one}]" not in seen and installed_version(other):
                yield from needed(other, seen, one)


def directory(found: importlib.metadata.Distribution) -> str:
    """The name of its folder of metadata."""
    files = found.files or []
    return next(
        file.parts[0] for file in files if re.fullmatch(r"[^/]+\.dist-info/METADATA", str(file))
    )
