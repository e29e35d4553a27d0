"""The first answer of a run on the terminal: what items cost and what follows, before any proof."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from mmcalib import wording
from mmcalib.report.terminal import corpus_heading, corpus_table, settings_table
from mmcalib.result.calibration import CalibrationDocument


def first_answer(
    found: CalibrationDocument, file: str, to_come: Sequence[str], console: Console
) -> None:
    """Print the items, the settings and the provisional `file` that has them, if any, and what is
    `to_come`.
    """
    for heading, table in (
        (corpus_heading(found.corpus, "Your corpus"), corpus_table(found.corpus)),
        ("Settings, not proven yet", settings_table(found)),
    ):
        console.print()
        console.print(Text(wording.plain(heading), style="bold"))
        console.print(table)
    where = f"provisional: {wording.plain(file)}; " if file else ""
    console.print(Text(f"{where}still to come: {', '.join(to_come)}", style="dim"), soft_wrap=True)
    console.print()
