"""report.md, the text for an issue, and differences of two results."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from mmcalib import text
from mmcalib.report import rows
from mmcalib.report.html.redact import redacted
from mmcalib.report.rows import cell
from mmcalib.results.calibration import SERVE, CalibrationDocument, with_environment
from mmcalib.results.engine_yaml import engine_yaml, yaml_key
from mmcalib.results.memory import Rehearsal
from mmcalib.text import dotted, number, printable


def environment(package: str, **options: Any) -> Environment:
    """A Jinja environment for the templates of `package`; an undefined name is an error."""
    made = Environment(loader=PackageLoader(package), undefined=StrictUndefined, **options)  # noqa: S701
    for name in ("number", "gib", "share", "ratio", "seconds", "printable"):
        made.filters[name] = getattr(text, name)
    return made


def _template(name: str) -> Template:
    """A template of Markdown. File names stay text: table cells are escaped."""
    # Markdown: `cell` escapes.
    made = environment("mmcalib.report", autoescape=False, keep_trailing_newline=True)
    made.filters["cell"] = cell
    # Words of mmcalib's own keep their underscores.
    made.filters["text"] = lambda value: cell(value).replace("\\_", "_")
    made.filters["code"] = lambda value: _without_backticks(str(value)).replace("|", "\\|")
    made.filters["fenced"] = _without_backticks
    return made.get_template(name)


def _without_backticks(line: str) -> str:
    """Text that cannot end its code block."""
    return printable(line).replace("`", "'")


def markdown(calibration: CalibrationDocument, serve_with: str) -> str:
    """Render from the calibration alone."""
    points = calibration.frontier
    return _template("report.md.j2").render(
        c=calibration,
        words=rows,
        kv=any(point.kv_cache_bytes is not None for point in points),
        labels=" or ".join(sorted({point.label for point in points}, reverse=True)),
        bleeding={p.knob: " and ".join(p.bleeds) for p in points if p.bleeds}.items(),
        verdict=rows.verdict_of(calibration),
        serve=serve_with,
        yaml=engine_yaml(calibration, serve_with),
    )


MOST_LINES: Final = 30
_SETTINGS: Final = 11


def issue(calibration: CalibrationDocument) -> str:
    """At most `MOST_LINES` lines, without file names of the data."""
    shown, _ = redacted(calibration)
    entries = (yaml_key(*item) for item in shown.engine_config.items() if item[1] is not None)
    # JSON is YAML too.
    settings = [f"{name}: {json.dumps(value)}" for name, value in entries]
    compared = rows.columns(shown)
    page = _template("issue.md.j2").render(
        c=shown,
        words=rows,
        serve=with_environment(shown.server.environment, SERVE),
        settings=settings[:_SETTINGS],
        more=len(settings) - _SETTINGS,
        compared=compared,
        reserved=(rows.reserved_rows(compared)[0], *rows.memory_rows(compared)),
    )
    checks = [
        f"- {rows.MARKS[check.status]} {cell(text.one_line(rows.check_line(check)))}"
        for check in rows.worst_first(shown.checks)
        if check.status in ("fail", "warn")
    ]
    most = MOST_LINES - page.count("\n") - 1
    if len(checks) > most:
        checks[most - 1 :] = [f"- and {len(checks[most - 1 :])} more"]
    return "\n".join([page, *checks, ""]) if checks else page


_NOTHING: Final = "—"
Difference = tuple[str, str, str]
# Two of one kind are compared.
_Compared = CalibrationDocument | Rehearsal
# Values by name, by part of the document.
_Parts = Mapping[str, Mapping[str, str]]
# Fields of a rehearsal other than figures.
_SUBJECT = (
    *("starts", "model", "gpu", "vllm", "runner", "sampler", "attention", "encoder_attention"),
    *("dtype", "tensor_parallel_size"),
)


def differences(old: _Compared, new: _Compared) -> dict[str, list[Difference]]:
    """By part, (name, old, new) of everything that differs; equal parts are left out."""
    found: dict[str, list[Difference]] = {}
    afterwards = _parts_of(new)
    for part, before in _parts_of(old).items():
        after = afterwards[part]
        for name in dict.fromkeys([*before, *after]):
            was, now = before.get(name, _NOTHING), after.get(name, _NOTHING)
            if before.get(name) != after.get(name):
                found.setdefault(part, []).append((printable(name), printable(was), printable(now)))
    return found


def _parts_of(shown: _Compared) -> _Parts:
    if isinstance(shown, Rehearsal):
        budget = shown.budget.model_dump() if shown.budget else {}
        return {
            "Inputs": {name: str(getattr(shown, name)) for name in _SUBJECT},
            "Memory": {what.strip(): size for what, size, _ in rows.rehearsed_rows(shown.memory)},
            "Encoder budget": {name: str(value) for name, value in dotted(budget)},
        }
    corpus = shown.corpus
    about = {
        "verdict": rows.verdict_of(shown),
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
    reserved = rows.reservation_rows(shown)
    return {
        "Inputs": about,
        "Settings": {name: str(value) for name, value in dotted(shown.engine_config)},
        "Memory, tuned": {what: f"{value} [{label}]" for what, *_, value, label in reserved},
        "Checks": {check.name: check.status for check in shown.checks},
    }
