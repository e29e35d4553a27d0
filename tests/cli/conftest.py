"""The command line as a user meets it, without any engine: nothing here gets as far as vLLM."""

import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from PIL import Image

from mmcalib.cli import main


@dataclass(frozen=True, slots=True)
class Ended:
    code: int
    out: str
    err: str


Cli = Callable[..., Ended]


@pytest.fixture
def cli(request, monkeypatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Iterator[Cli]:
    """Run `mmcalib` offline with its own cache; skip where it needs a vLLM that is missing."""
    for name, value in {
        "NO_COLOR": "1",
        "COLUMNS": "80",
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(tmp_path / "hub"),
        "MMCALIB_CACHE_DIR": str(tmp_path / "cache"),
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("MMCALIB_DEBUG", raising=False)
    monkeypatch.chdir(tmp_path)

    def run(*words: object) -> Ended:
        monkeypatch.setattr(sys, "argv", ["mmcalib", *map(str, words)])
        code: str | int = 0
        try:
            main()
        except SystemExit as left:
            code = left.code or 0
        assert isinstance(code, int), code
        said = capsys.readouterr()
        if "error: vLLM is not installed" in said.err and "without_vllm" not in request.node.name:
            pytest.skip("needs vLLM: make setup")
        return Ended(code, said.out, said.err)

    handler = signal.getsignal(signal.SIGTERM)
    yield run
    signal.signal(signal.SIGTERM, handler)


@pytest.fixture
def media(tmp_path: Path) -> Path:
    folder = tmp_path / "media"
    folder.mkdir()
    Image.new("RGB", (56, 28)).save(folder / "a.png")
    return folder
