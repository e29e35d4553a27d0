"""Writes the blocks of README, docs and docs/example that are outputs of the tool.

    python tests/docs/refresh.py                          # from docs/example/calibration.json
    python tests/docs/refresh.py out/calibration.json     # from a new run of `make demo`

Two things are not as they came: the folders above `sample/` are cut off, and a development
version is the one that it leads to.
"""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

from rich.console import Console

from mmcalib.admission.calibration import Calibration
from mmcalib.checks.catalogue import GROUPS
from mmcalib.report.markdown import markdown
from mmcalib.report.summary import summary
from mmcalib.results.engine_yaml import engine_yaml

ROOT = Path(__file__).resolve().parent.parent.parent
README = ROOT / "README.md"
# Where each block stands.
PAGES = {"terminal": "README.md", "engine.yaml": "docs/get-started.md", "help": "docs/run.md"}
EXAMPLE = ROOT / "docs" / "example"
CHECKS_PAGE = ROOT / "docs" / "reference" / "checks.md"
CHECKS_INTRO = (
    "Codes never change. `mmcalib list checks MM031` explains one on the terminal, and `…` stands "
    "for its subject."
)
SERVE = "vllm serve --config out/engine.yaml"
WIDTH = 80

_HELP = "import sys; sys.argv = ['mmcalib', 'run', '--help']; from mmcalib.cli import main; main()"


def example() -> Calibration:
    """The calibration that README and docs show."""
    return Calibration.load(EXAMPLE / "calibration.json")


def terminal(calibration: Calibration) -> str:
    """The summary as it stands on a terminal of `WIDTH` columns without colours."""
    page = io.StringIO()
    console = Console(file=page, width=WIDTH, color_system=None, highlight=False)
    summary(calibration, console, serve=SERVE, folder="out")
    lines = [line.rstrip() for line in page.getvalue().strip().splitlines()]
    return "\n".join(lines) + "\n"


def help_text() -> str:
    """What `mmcalib run --help` prints on a plain terminal of 88 columns."""
    env = {**os.environ, "COLUMNS": "88", "NO_COLOR": "1", "TERM": "dumb"}
    done = subprocess.run(
        [sys.executable, "-c", _HELP], cwd=ROOT, env=env, capture_output=True, text=True, check=True
    )
    return "\n".join(line.rstrip() for line in done.stdout.strip().splitlines()) + "\n"


def checks_page() -> str:
    """docs/reference/checks.md, of every check by its code."""
    groups = [
        "\n\n".join([f"## {title}", *(f"**{c.code} {c.name}.** {c.explanation}" for c in group)])
        for title, group in ((title, found.values()) for title, found in GROUPS.items())
    ]
    return "\n\n".join(["# Checks", CHECKS_INTRO, *groups]) + "\n"


def blocks() -> dict[str, str]:
    """The fenced blocks that follow `<!-- name -->`, as they should be."""
    shown = example()
    return {
        "terminal": terminal(shown),
        "engine.yaml": engine_yaml(shown, SERVE),
        "help": help_text(),
    }


def shown(name: str, page: str) -> str:
    """The content of the fenced block that follows `<!-- name -->`."""
    found = _fenced(name).search(page)
    assert found is not None, name
    return found["content"]


def _fenced(name: str) -> re.Pattern[str]:
    start = rf"(?P<start><!-- {re.escape(name)} -->\n```\w*\n)"
    return re.compile(start + r"(?P<content>.*?)(?P<end>^```$)", re.S | re.M)


def adopt(path: Path) -> None:
    """Make a finished run the example."""
    text = re.sub(r'(?<=")/[^"]*/(?=sample/)', "", path.read_text(encoding="utf-8"))
    text = re.sub(r"(?<=[ (])/[^ \"]*/(?=sample/)", "", text)
    text = re.sub(r'("mmcalib": "[\d.]+?)\.dev[^"]*', r"\1", text)
    (EXAMPLE / "calibration.json").write_text(text, encoding="utf-8")


def _filled(content: str, found: re.Match[str]) -> str:
    return found["start"] + content + found["end"]


def main() -> None:
    for given in sys.argv[1:]:
        adopt(Path(given))
    for name, content in blocks().items():
        path = ROOT / PAGES[name]
        page = path.read_text(encoding="utf-8")
        path.write_text(_fenced(name).sub(partial(_filled, content), page), encoding="utf-8")
    (EXAMPLE / "engine.yaml").write_text(engine_yaml(example(), SERVE), encoding="utf-8")
    CHECKS_PAGE.write_text(checks_page(), encoding="utf-8")
    (EXAMPLE / "report.md").write_text(markdown(example(), SERVE), encoding="utf-8")


if __name__ == "__main__":
    main()
