"""Writes docs/packages.md: which package of mmcalib imports which, as the source has it.

python tests/docs/packages.py
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT))

from tests.test_house import ORDER, edges  # noqa: E402

PAGE = ROOT / "docs" / "packages.md"
_HEAD = """# Who imports whom

Each arrow is at least one import. A package imports from those below it; modules that everybody
may import (`errors`, `progress`, ...) are left out. Written by `python tests/docs/packages.py`;
`tests/test_house.py` fails where the source is otherwise.
"""


_WORKFLOWS = """
## Inside the workflows

What `run`, `validate`, `plan`, `check` and `doctor` are made of; no cycle among them.
"""


def page() -> str:
    packages = sorted(edges(), key=lambda edge: tuple(map(_place, edge)))
    parts = sorted(edges("mmcalib.workflows"))
    return "\n".join([_HEAD, *_graph(packages), _WORKFLOWS, *_graph(parts), ""])


def _graph(arrows: Iterable[tuple[str, str]]) -> list[str]:
    drawn = [f"    {importer} --> {imported}" for importer, imported in arrows]
    return ["```mermaid", "graph TD", *drawn, "```"]


def _place(package: str) -> tuple[int, str]:
    return next(i for i, group in enumerate(ORDER) if package in group), package


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
    print(f"wrote {PAGE.relative_to(ROOT)}")
