"""One screen on the terminal: what the corpus costs, what is reserved, what was proven."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from mmcalib.report import words
from mmcalib.report.calibration import Calibration

_STYLES = {"pass": "green", "warn": "yellow", "fail": "red", "skip": "dim"}


def summary(calibration: Calibration, console: Console) -> None:
    """Print the summary; plain text where the console has no colours."""
    model, tool = calibration.model, calibration.tool
    console.print()
    console.print(
        Text(f"{model.id} ({model.source}), vLLM {tool.vllm}, transformers {tool.transformers}")
    )
    console.print(_corpus(calibration))
    console.print(_reserved(calibration))
    console.print(_settings(calibration))
    for check in calibration.checks:
        line = Text(f"{words.MARKS[check.status]} ", style=_STYLES[check.status])
        line.append(words.check_line(check), style="default")
        console.print(line)
        if check.remedy and check.status in ("warn", "fail"):
            console.print(Text(f"   {check.remedy}", style="dim"))
    style = "bold green" if calibration.verdict == "pass" else "bold red"
    console.print(Text(f"verdict: {calibration.verdict}", style=style))


def _corpus(calibration: Calibration) -> Table:
    corpus = calibration.corpus
    title = f"Your corpus: {corpus.items} items in {corpus.prompts} requests, tokens per item"
    if not corpus.prompts:
        title = f"Your corpus: {corpus.items} items, tokens per item"
    table = _table(title + " (measured)")
    for name in ("", "items", "min", "p50", "p90", "p99", "max", "heaviest"):
        table.add_column(name, justify="left" if name in ("", "heaviest") else "right")
    for modality, found in corpus.modalities.items():
        tokens = found.tokens
        counts = (tokens.min, tokens.p50, tokens.p90, tokens.p99, tokens.max)
        numbers = [words.number(value) for value in (found.items, *counts)]
        table.add_row(modality, *numbers, found.heaviest)
    return table


def _reserved(calibration: Calibration) -> Table:
    table = _table("What vLLM reserves")
    for name in ("", "default", "calibrated", "label"):
        table.add_column(name, overflow="fold")
    for row in words.rows(calibration):
        table.add_row(*row)
    return table


def _settings(calibration: Calibration) -> Table:
    table = _table("Settings, and why")
    for name in ("setting", "value", "reason"):
        table.add_column(name, overflow="fold")
    for entry in calibration.limits.evidence:
        name = entry.setting.removeprefix("limit_mm_per_prompt.").removeprefix(
            "mm_processor_kwargs."
        )
        reason = f"{words.plain(entry.reason)} [{entry.label}]"
        table.add_row(name, words.plain(str(entry.value)), Text(reason))
    return table


def _table(title: str) -> Table:
    return Table(title=title, title_justify="left", box=None, pad_edge=False, title_style="bold")
