"""Kept outputs. MMCALIB_UPDATE_GOLDENS=1 writes them anew: read the difference first."""

import io
import os
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

FOLDER = Path(__file__).resolve().parent.parent / "goldens"


def check_golden(name: str, text: str) -> None:
    path = FOLDER / name
    if os.environ.get("MMCALIB_UPDATE_GOLDENS") == "1":
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8"), f"{path} differs; see {__name__}.py"


def printed(show: Callable[[Console], object], width: int = 80) -> str:
    """What is shown on a page of this width, without colours or blanks at the ends of lines."""
    page = io.StringIO()
    show(Console(file=page, width=width, color_system=None, highlight=False))
    return "".join(f"{line.rstrip()}\n" for line in page.getvalue().split("\n")[:-1])
