"""A diagnosis on the terminal: what is installed, what will work, and what to type."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console
from rich.table import Table
from rich.text import Text

from mmcalib import wording
from mmcalib.report.terminal import checks_table
from mmcalib.results.doctor import Diagnosis, Package


def diagnosed(found: Diagnosis, console: Console) -> None:
    """Print it, problems first."""
    console.print()
    title = f"mmcalib {found.mmcalib}, Python {found.host.python}, {found.host.platform}"
    console.print(Text(wording.plain(title), style="bold"))
    console.print()
    console.print(Text("Installed", style="bold"))
    console.print(_packages(found.packages))
    console.print()
    console.print(Text("Checks", style="bold"))
    bare = [check.model_copy(update={"remedy": ""}) for check in found.checks]
    console.print(checks_table(bare, in_full=True))
    _remedies(found, console)
    console.print(Text(_verdict(found), style="bold"))


def _packages(packages: list[Package]) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column("", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("", overflow="fold")
    for row in _rows(packages):
        table.add_row(*map(Text, row))
    return table


def _remedies(found: Diagnosis, console: Console) -> None:
    """Each on a line of its own, however long: it is there to be copied."""
    wrong = [check for check in found.checks if check.status in ("fail", "warn")]
    for check in (check for check in wrong if check.remedy):
        console.print()
        console.print(Text(f"To cure {check.name}", style="bold"))
        console.print(Text(f"  {wording.plain(check.remedy)}"), soft_wrap=True)
    console.print()


def _rows(packages: list[Package]) -> Iterator[tuple[str, str, str]]:
    for package in packages:
        purpose = package.purpose
        # What the job needs has a check of its own, which says more.
        if package.version is None and package.need == "optional":
            purpose += f": {package.install}"
        yield package.name, package.version or "—", purpose


def _verdict(found: Diagnosis) -> str:
    if found.verdict == "pass":
        return "mmcalib run works here"
    return "mmcalib run does not work here yet"
