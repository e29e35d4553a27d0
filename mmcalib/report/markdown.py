"""Report.md, issue, diff."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined

from mmcalib import text
from mmcalib.report import rows, terminal_memory
from mmcalib.report.html.redact import redacted
from mmcalib.report.rows import cell
from mmcalib.report.terminal_memory import memory_rows
from mmcalib.results.calibration import SERVE, CalibrationDocument, serving
from mmcalib.results.engine_yaml import engine_yaml, spelled
from mmcalib.results.memory import Rehearsal
from mmcalib.results.part import CheckResult, verdict_words
from mmcalib.text import number, plain


def markdown(calibration: CalibrationDocument, serve_with: str) -> str:
    """Render from the calibration alone. File names stay text: table cells are escaped."""
    environment = Environment(
        loader=PackageLoader("mmcalib.report"),
        undefined=StrictUndefined,
        autoescape=False,  # noqa: S701 - Markdown, not HTML; `cell` escapes what it must
        keep_trailing_newline=True,
    )
    for name in ("number", "gib", "share", "ratio", "seconds", "plain"):
        environment.filters[name] = getattr(text, name)
    environment.filters.update(cell=cell, text=_text, code=_inline_code)
    return environment.get_template("report.md.j2").render(
        c=calibration,
        words=rows,
        columns=[column.name for column in rows.columns(calibration)],
        rows=rows.reservation_rows(calibration),
        kv=any(point.kv_cache_bytes is not None for point in calibration.frontier),
        labels=" or ".join(sorted({point.label for point in calibration.frontier}, reverse=True)),
        bleeding={p.knob: " and ".join(p.bleeds) for p in calibration.frontier if p.bleeds}.items(),
        served=terminal_memory,
        verdict=verdict_words(calibration.verdict, calibration.checks, calibration.corpus.losses()),
        serve=serve_with,
        yaml=engine_yaml(calibration, serve_with),
    )


def _text(value: object) -> str:
    """The same for a word or two of mmcalib's own, whose underlines may stay."""
    return cell(value).replace("\\_", "_")


def _inline_code(value: object) -> str:
    """Text that stays inside of its backticks and its table cell."""
    return text.plain(str(value)).replace("`", "'").replace("|", "\\|")


MOST_LINES: Final = 30
_SETTINGS: Final = 11
_BROKEN = ("fail", "warn")


def issue(calibration: CalibrationDocument) -> str:
    """At most `MOST_LINES` lines; no file of the corpus is named."""
    shown, _ = redacted(calibration)
    tool, memory = shown.tool, shown.memory.calibrated
    gpu = rows.on_gpu(memory).removeprefix(" on ") or "no GPU was named"
    items = ", ".join(f"{m.items:,} {cell(name)}" for name, m in shown.corpus.modalities.items())
    head = [
        f"- mmcalib {tool['mmcalib']}, vLLM {tool['vllm']}, transformers {tool['transformers']}, "
        f"torch {tool['torch']}, Python {tool['python']}",
        f"- {cell(shown.model.id)} ({shown.model.source}), {cell(shown.model.architecture)}",
        f"- {cell(gpu)}; {items} items, {shown.corpus.prompts:,} requests",
        f"- Verdict: {verdict_words(shown.verdict, shown.checks, shown.corpus.losses())}",
    ]
    lines = [
        *map(text.plain, head),
        "",
        "```yaml",
        _block_line(f"# {serving(shown.server, SERVE)}"),
        *_settings_that_fit(shown.engine_config),
        "```",
        "",
        *_table(shown),
    ]
    checks = [check for check in shown.checks if check.status in _BROKEN]
    if checks:
        lines += ["", *_checks_that_fit(checks, MOST_LINES - len(lines) - 1)]
    return "\n".join(lines) + "\n"


def _settings_that_fit(config: dict[str, Any]) -> Iterator[str]:
    """What fits; JSON is YAML too."""
    entries = (spelled(key, value) for key, value in config.items() if value is not None)
    said = [f"{name}: {json.dumps(value)}" for name, value in entries]
    yield from map(_block_line, said[:_SETTINGS])
    if rest := said[_SETTINGS:]:
        yield f"# and {len(rest)} more"


def _table(shown: CalibrationDocument) -> Iterator[str]:
    """Of what vLLM reserves, what a maintainer asks for first."""
    compared = rows.columns(shown)
    yield f"| | {' | '.join(one.name for one in compared)} |"
    yield f"|---|{'--:|' * len(compared)}"
    for *cells, _ in (rows.budget_row(compared), *rows.memory_rows(compared)):
        yield f"| {' | '.join(map(cell, cells))} |"


def _checks_that_fit(checks: Sequence[CheckResult], most: int) -> Iterator[str]:
    """The failed ones first, each on one line."""
    ordered = list(chain(*([c for c in checks if c.status == status] for status in _BROKEN)))
    named = ordered if len(ordered) <= most else ordered[: most - 1]
    for check in named:
        said = text.one_line(rows.check_line(check))
        yield f"- {rows.MARKS[check.status]} {cell(said)}"
    if len(named) < len(ordered):
        yield f"- and {len(ordered) - len(named)} more"


def _block_line(line: str) -> str:
    """What cannot end the block that it stands in."""
    return text.plain(line).replace("`", "'")


NOTHING = "—"
Difference = tuple[str, str, str]
# Of a rehearsal, besides its figures.
_SUBJECT = (
    *("starts", "model", "gpu", "vllm", "runner", "sampler", "attention", "encoder_attention"),
    *("dtype", "tensor_parallel_size"),
)


def differences(
    old: CalibrationDocument, new: CalibrationDocument
) -> Mapping[str, list[Difference]]:
    """By part, (what, old, new) of all that is not the same; parts without any are left out."""
    found = {
        "What was calibrated": _unlike(_about(old), _about(new)),
        "Settings": _unlike(_flat_settings(old), _flat_settings(new)),
        "What vLLM reserves, calibrated": _unlike(_reserved(old), _reserved(new)),
        "Checks": _unlike(_check_statuses(old), _check_statuses(new)),
    }
    return {part: rows for part, rows in found.items() if rows}


def rehearsal_differences(old: Rehearsal, new: Rehearsal) -> Mapping[str, list[Difference]]:
    """The same of two rehearsals."""
    found = {
        "What was rehearsed": _unlike(_subject(old), _subject(new)),
        "Memory": _unlike(_memory(old), _memory(new)),
        "Encoder budget": _unlike(_budget(old), _budget(new)),
    }
    return {part: rows for part, rows in found.items() if rows}


def _unlike(old: Mapping[str, str], new: Mapping[str, str]) -> list[Difference]:
    return [
        (plain(name), plain(old.get(name, NOTHING)), plain(new.get(name, NOTHING)))
        for name in dict.fromkeys([*old, *new])
        if old.get(name) != new.get(name)
    ]


def _about(shown: CalibrationDocument) -> dict[str, str]:
    corpus = shown.corpus
    about = {
        "verdict": verdict_words(shown.verdict, shown.checks, shown.corpus.losses()),
        "model": shown.model.id,
        "vLLM": shown.tool["vllm"],
        "transformers": shown.tool["transformers"],
        "items": number(corpus.items),
        "requests": number(corpus.prompts),
        "skipped": number(corpus.skipped),
    }
    for modality, found in corpus.modalities.items():
        about[f"{modality} items"] = number(found.items)
        about[f"largest {modality}, tokens"] = number(found.tokens["max"])
    return about


def _flat_settings(shown: CalibrationDocument) -> dict[str, str]:
    return dict(_flat(shown.engine_config))


def _flat(settings: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, str]]:
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", str(value)


def _reserved(shown: CalibrationDocument) -> dict[str, str]:
    return {what: f"{value} [{label}]" for what, *_, value, label in rows.reservation_rows(shown)}


def _check_statuses(shown: CalibrationDocument) -> dict[str, str]:
    return {check.name: check.status for check in shown.checks}


def _subject(shown: Rehearsal) -> dict[str, str]:
    return {name: str(getattr(shown, name)) for name in _SUBJECT}


def _memory(shown: Rehearsal) -> dict[str, str]:
    return {row.what.strip(): row.size for row in memory_rows(shown.memory)}


def _budget(shown: Rehearsal) -> dict[str, str]:
    return dict(_flat(shown.budget.model_dump())) if shown.budget else {}
