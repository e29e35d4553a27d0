"""A calibration in few lines of Markdown, to be pasted into an issue."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, Final

from mmcalib import wording
from mmcalib.report import words
from mmcalib.report.cells import cell
from mmcalib.report.html.redact import redacted
from mmcalib.results.calibration import SERVE, CalibrationDocument, serving
from mmcalib.results.engine_yaml import spelled
from mmcalib.results.part import CheckResult, verdict_words

MOST_LINES: Final = 30
_SETTINGS: Final = 11
_BROKEN = ("fail", "warn")


def issue(calibration: CalibrationDocument) -> str:
    """At most `MOST_LINES` lines; no file of the corpus is named."""
    shown, _ = redacted(calibration)
    tool, memory = shown.tool, shown.memory.calibrated
    gpu = words.on_gpu(memory).removeprefix(" on ") or "no GPU was named"
    items = ", ".join(f"{m.items:,} {cell(name)}" for name, m in shown.corpus.modalities.items())
    head = [
        f"- mmcalib {tool.mmcalib}, vLLM {tool.vllm}, transformers {tool.transformers}, "
        f"torch {tool.torch}, Python {tool.python}",
        f"- {cell(shown.model.id)} ({shown.model.source}), {cell(shown.model.architecture)}",
        f"- {cell(gpu)}; {items} items, {shown.corpus.prompts:,} requests",
        f"- Verdict: {verdict_words(shown.verdict, shown.checks, shown.corpus.losses())}",
    ]
    lines = [
        *map(wording.plain, head),
        "",
        "```yaml",
        _code(f"# {serving(shown.server, SERVE)}"),
        *_settings(shown.engine_config),
        "```",
        "",
        *_table(shown),
    ]
    checks = [check for check in shown.checks if check.status in _BROKEN]
    if checks:
        lines += ["", *_checks(checks, MOST_LINES - len(lines) - 1)]
    return "\n".join(lines) + "\n"


def _settings(config: dict[str, Any]) -> Iterator[str]:
    """What fits; JSON is YAML too."""
    entries = (spelled(key, value) for key, value in config.items() if value is not None)
    said = [f"{name}: {json.dumps(value)}" for name, value in entries]
    yield from map(_code, said[:_SETTINGS])
    if rest := said[_SETTINGS:]:
        yield f"# and {len(rest)} more"


def _table(shown: CalibrationDocument) -> Iterator[str]:
    """Of what vLLM reserves, what a maintainer asks for first."""
    compared = words.columns(shown)
    yield f"| | {' | '.join(one.name for one in compared)} |"
    yield f"|---|{'--:|' * len(compared)}"
    for *cells, _ in (words.budget_row(compared), *words.memory_rows(compared)):
        yield f"| {' | '.join(map(cell, cells))} |"


def _checks(checks: Sequence[CheckResult], most: int) -> Iterator[str]:
    """The failed ones first, each on one line."""
    ordered = list(chain(*([c for c in checks if c.status == status] for status in _BROKEN)))
    named = ordered if len(ordered) <= most else ordered[: most - 1]
    for check in named:
        said = wording.one_line(words.check_line(check))
        yield f"- {words.MARKS[check.status]} {cell(said)}"
    if len(named) < len(ordered):
        yield f"- and {len(ordered) - len(named)} more"


def _code(line: str) -> str:
    """What cannot end the block that it stands in."""
    return wording.plain(line).replace("`", "'")
