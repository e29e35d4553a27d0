"""What each supported release of vLLM can be asked for: capability × release, and every command.

    python benchmarks/compat.py --vllm 0.33.0 --media sample
    python benchmarks/compat.py --vllm 0.33.0 --python PATH --media sample --tests

Each release has an environment of its own (below `--environments`, made by pip where it is not
there, with vLLM's CPU build where that release has one), in which this checkout runs: what vLLM
can be asked for, then with `--media` `run`, `validate`, `check`, `plan` and `rehearse` over it,
then with `--tests` the project's own tests of what faces vLLM. Rows are kept in `--rows`, one file
a release, and `--page` writes the table of all that are there. Exits 1 where anything is wrong.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path
from subprocess import CalledProcessError

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from compatibility.commands import capabilities, commands  # noqa: E402
from compatibility.environments import environment  # noqa: E402
from compatibility.page import page  # noqa: E402
from compatibility.rows import Cell, keep, kept  # noqa: E402
from compatibility.suites import SUITES, suites  # noqa: E402

from mmcalib.releases.constants import TESTED  # noqa: E402

PAGE = ROOT / "reports" / "vllm-compat.md"
ROWS = ROOT / "reports" / "vllm-compat"
ENVIRONMENTS = ROOT / ".compat"


def tried(python: Path, scratch: Path, given: argparse.Namespace) -> Iterator[tuple[str, Cell]]:
    """Commands and tests, as far as they are asked for."""
    if given.media is not None:
        yield from commands(python, given.media, scratch)
    if given.tests or given.suite:
        yield from suites(python, scratch, given.suite)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--vllm", action="append", default=[], help="a release, such as 0.33.0")
    parser.add_argument("--python", type=Path, help="of an environment that has it")
    parser.add_argument(
        "--media", type=Path, help="a corpus with a folder `image`; without one no command is tried"
    )
    parser.add_argument("--tests", action="store_true", help="run the tests that face vLLM, too")
    parser.add_argument("--suite", action="append", default=[], choices=SUITES, help="these alone")
    parser.add_argument("--environments", type=Path, default=ENVIRONMENTS)
    parser.add_argument("--rows", type=Path, default=ROWS)
    parser.add_argument("--page", type=Path, default=PAGE)
    given = parser.parse_args()
    wanted = given.vllm or [f"{release}.0" for release in reversed(TESTED)]
    given.rows.mkdir(parents=True, exist_ok=True)
    wrong = 0
    for release in wanted:
        try:
            python = given.python or environment(release, given.environments)
        except CalledProcessError as error:
            print(f"{release}  not installed: {' '.join(map(str, error.cmd[2:]))}", flush=True)
            wrong += 1
            continue
        scratch = given.environments / "scratch" / release
        scratch.mkdir(parents=True, exist_ok=True)
        row = capabilities(release, python)
        found = {}
        for name, cell in chain(row.cells.items(), tried(python, scratch, given)):
            found[name] = cell
            line = f"{release}  {name:18} {cell.state:10} {cell.seconds:6.1f} s  {cell.why}"
            print(line[:160], flush=True)
        keep(replace(row, cells=found), given.rows)
        bad = {name: cell.why for name, cell in found.items() if cell.wrong}
        for name, why in bad.items():
            print(f"{release}  {name}:", *why.split("; "), sep="\n    ", flush=True)
        wrong += len(bad)
    given.page.write_text(page(kept(given.rows)))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
