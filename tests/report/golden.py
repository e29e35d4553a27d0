"""Kept outputs. MMCALIB_UPDATE_GOLDENS=1 writes them anew: read the difference first."""

import os
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / "goldens"


def check_golden(name: str, text: str) -> None:
    path = FOLDER / name
    if os.environ.get("MMCALIB_UPDATE_GOLDENS") == "1":
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8"), f"{path} differs; see {__name__}.py"
