"""A data set that holds Python files, in which the commands are typed."""

import os
import shutil
import sys
from pathlib import Path

import pytest
from PIL import Image

from mmcalib.census.executor import FunctionRef, ProbeTask
from mmcalib.census.pool import LocalPool
from mmcalib.domain.items import Item, decode_line
from mmcalib.domain.shapes import ImageShape
from mmcalib.processes import safe_environment
from tests.conftest import ROOT
from tests.e2e.command import QWEN, environment
from tests.programs import run_program
from tests.schemas import CALIBRATION

# What Python (at startup, too), mmcalib, vLLM and Ray import: standard library and packages.
NAMES = (
    *("uuid", "random", "typing", "datasets", "json", "sitecustomize", "usercustomize", "torch"),
    *("vllm", "transformers", "numpy", "ray", "av", "PIL", "pyarrow", "soundfile", "dataclasses"),
    *("pathlib", "socket", "subprocess", "tempfile", "sqlite3", "logging", "asyncio", "psutil"),
    *("triton", "cv2", "librosa", "yaml", "typer", "rich", "pydantic", "fsspec", "aiohttp"),
)
PACKAGES = ("torch", "vllm", "ray", "PIL")
SCRIPT = (str(Path(sys.executable).with_name("mmcalib")),)
MODULE = (sys.executable, "-m", "mmcalib")


@pytest.fixture
def data_set(tmp_path: Path) -> Path:
    """Pictures, and modules that say in `marks` that they were imported."""
    folder = tmp_path / "data"
    folder.mkdir()
    marks = tmp_path / "marks"
    for name in NAMES:
        code = f"with open({str(marks)!r}, 'a') as file: print({name!r}, file=file)\n"
        home = folder / name if name in PACKAGES else folder
        home.mkdir(exist_ok=True)
        (home / "__init__.py" if name in PACKAGES else home / f"{name}.py").write_text(code)
    # What Python takes for an installed package that vLLM should load.
    info = folder / "evil-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: evil\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[vllm.general_plugins]\nevil = uuid:evil\n")
    for number in range(3):
        Image.new("RGB", (640 + 28 * number, 480), "teal").save(folder / f"{number}.png")
    return folder


def typed(folder: Path, entry: tuple[str, ...], *words: object) -> str:
    """Type the command in the folder, and assert that nothing there was imported."""
    done = run_program(
        *entry, *words, cwd=folder, env=environment(folder.parent / "cache"), timeout=500
    )
    assert done.returncode in (0, 3), done.stderr
    marks = folder.parent / "marks"
    assert not marks.exists(), f"{sorted(set(marks.read_text().split()))}\n{done.stderr}"
    return done.stdout + done.stderr


@pytest.mark.parametrize("entry", [SCRIPT, MODULE], ids=["script", "module"])
def test_nothing_there_is_imported_without_an_engine(data_set: Path, entry: tuple[str]) -> None:
    shutil.copytree(CALIBRATION.parent, data_set.parent / "example")
    typed(data_set, entry, "--version")
    typed(data_set, entry, "list", "models")
    assert '"items": 3' in typed(data_set, entry, "scan", "--data", ".", "--json")
    typed(data_set, entry, "check", ".", "--calibration", CALIBRATION)
    typed(data_set, entry, "report", data_set.parent / "example", "--emit", "args", "--force")
    typed(data_set, entry, "report", data_set.parent / "example")


@pytest.mark.slow
@pytest.mark.parametrize("entry", [SCRIPT, MODULE], ids=["script", "module"])
def test_nothing_there_is_imported_by_a_cluster_that_is_begun(data_set: Path, entry) -> None:
    pytest.importorskip("ray")
    words = ("scan", "--data", ".", "--executor", "ray", "--json")
    assert '"items": 3' in typed(data_set, entry, *words)


@pytest.mark.engine
@pytest.mark.slow
def test_nothing_there_is_imported_by_an_engine(data_set: Path) -> None:
    """vLLM starts processes that look at models, and compiles."""
    typed(data_set, MODULE, "doctor")
    words = ("--model", QWEN, "--data", ".", "--out", data_set.parent / "out")
    typed(data_set, MODULE, "run", *words, "--startup-budget", "20")


@pytest.mark.engine
@pytest.mark.slow
def test_nothing_there_is_imported_by_an_engine_that_is_not_started(data_set: Path) -> None:
    config = CALIBRATION.with_name("engine.yaml")
    typed(data_set, SCRIPT, "rehearse", "--model", QWEN, "--gpu", "L4")
    typed(data_set, SCRIPT, "validate", "--config", config, "--validate", "budget")
    typed(data_set, SCRIPT, "plan", "--model", QWEN, "--gpu", "H100-80G")


def test_an_empty_entry_of_the_path_is_not_the_working_folder(data_set: Path, monkeypatch) -> None:
    """Shells leave one in `PYTHONPATH=$PYTHONPATH:DIR`; no child process may have it."""
    monkeypatch.chdir(data_set)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["", ".", "./", str(ROOT), "lib"]))
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    found = safe_environment(os.environ)
    assert found["PYTHONPATH"].split(os.pathsep) == [str(ROOT), str(data_set / "lib")]
    item = Item(str(data_set / "0.png"))
    with LocalPool(FunctionRef("mmcalib.media.probe", "probe"), workers=1) as pool:
        (answer,) = pool.submit([ProbeTask(item)])()
    assert decode_line(item.path, answer.line) == ImageShape(640, 480)
    assert not (data_set.parent / "marks").exists()
