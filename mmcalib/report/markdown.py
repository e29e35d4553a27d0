"""`report.md`: the whole calibration as a page that can be pasted into an issue."""

from __future__ import annotations

from jinja2 import Environment, PackageLoader, StrictUndefined

from mmcalib import wording
from mmcalib.report import traffic_words, words
from mmcalib.report.cells import cell
from mmcalib.results.calibration import CalibrationDocument
from mmcalib.results.engine_yaml import engine_yaml
from mmcalib.results.part import verdict_words


def markdown(calibration: CalibrationDocument, serve_with: str) -> str:
    """Render from the calibration alone. File names stay text: table cells are escaped."""
    environment = Environment(
        loader=PackageLoader("mmcalib.report"),
        undefined=StrictUndefined,
        autoescape=False,  # noqa: S701 - Markdown, not HTML; `cell` escapes what it must
        keep_trailing_newline=True,
    )
    for name in ("number", "gib", "share", "ratio", "seconds", "plain"):
        environment.filters[name] = getattr(wording, name)
    environment.filters.update(cell=cell, text=_text, code=_code)
    return environment.get_template("report.md.j2").render(
        c=calibration,
        words=words,
        columns=[column.name for column in words.columns(calibration)],
        rows=words.rows(calibration),
        kv=any(point.kv_cache_bytes is not None for point in calibration.frontier),
        labels=" or ".join(sorted({point.label for point in calibration.frontier}, reverse=True)),
        bleeding={p.knob: " and ".join(p.bleeds) for p in calibration.frontier if p.bleeds}.items(),
        served=traffic_words,
        verdict=verdict_words(calibration.verdict, calibration.checks, calibration.corpus.losses()),
        serve=serve_with,
        yaml=engine_yaml(calibration, serve_with),
    )


def _text(value: object) -> str:
    """The same for a word or two of mmcalib's own, whose underlines may stay."""
    return cell(value).replace("\\_", "_")


def _code(value: object) -> str:
    """Text that stays inside of its backticks and its table cell."""
    return wording.plain(str(value)).replace("`", "'").replace("|", "\\|")
