"""The page: every part of the report in the order of a reader's questions."""

from __future__ import annotations

from collections.abc import Sequence

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from mmcalib import wording
from mmcalib.report import traffic_words, words
from mmcalib.report.html.cache import cache
from mmcalib.report.html.costly import CostlyItem
from mmcalib.report.html.distribution import distributions
from mmcalib.report.html.frontier import frontiers
from mmcalib.report.html.headline import facts, headlines
from mmcalib.report.html.memory import memory
from mmcalib.report.html.sizes import sizes
from mmcalib.report.html.traffic import traffic
from mmcalib.report.issue import issue
from mmcalib.results.calibration import CalibrationDocument, grouped
from mmcalib.results.engine_yaml import engine_yaml
from mmcalib.results.part import verdict_words

# The worst first: it is what a reader must act on.
_ORDER = ("fail", "warn", "skip", "pass")
_LABELS = {
    "measured": "read from vLLM doing it",
    "rehearsed": "from vLLM's own startup code on imaginary memory",
    "computed": "follows from measured values by vLLM's own rule",
    "assumed": "nobody said otherwise",
    "given": "by you",
}


def page(
    shown: CalibrationDocument,
    serve: str,
    items: Sequence[CostlyItem],
    *,
    thumbnails: bool,
    redacted: bool,
) -> str:
    """The text of `report.html`. `thumbnails` and `redacted` say how pictures and names were made,
    so that the page can say so.
    """
    environment = Environment(
        loader=PackageLoader("mmcalib.report.html"),
        undefined=StrictUndefined,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_visible,
    )
    for name in ("number", "gib", "share", "ratio", "seconds", "plain"):
        environment.filters[name] = getattr(wording, name)
    environment.filters["name"] = _name
    environment.filters["dotted"] = _dotted
    return environment.get_template("report.html.j2").render(
        c=shown,
        facts=list(facts(shown)),
        headlines=headlines(shown),
        serve=serve,
        yaml=escape(engine_yaml(shown, serve)),
        tokens=list(distributions(shown)),
        sizes=list(sizes(shown)),
        frontiers=list(frontiers(shown)),
        issue=escape(issue(shown)),
        memory=memory(shown),
        cache=cache(shown.cache) if shown.cache else None,
        traffic=traffic(shown.traffic) if shown.traffic else None,
        served=traffic_words,
        items=items,
        thumbnails=thumbnails,
        redacted=redacted,
        words=words,
        columns=[column.name for column in words.columns(shown)],
        rows=words.rows(shown),
        diff=escape(words.diff_text(shown.yours)) if shown.yours else "",
        settings=grouped(shown.limits.evidence),
        verdict=verdict_words(shown.verdict, shown.checks, shown.corpus.losses()),
        checks=sorted(shown.checks, key=lambda check: _ORDER.index(check.status)),
        labels=_LABELS,
    )


def _visible(value: object) -> object:
    """Whatever is no markup, without characters that hide or turn text around."""
    return (
        wording.plain(value) if isinstance(value, str) and not isinstance(value, Markup) else value
    )


def _name(value: object) -> Markup:
    """Foreign text: escaped, control characters visible, and its direction its own."""
    return Markup("<bdi>") + escape(wording.plain(str(value))) + Markup("</bdi>")


def _dotted(setting: str) -> Markup:
    """The name of a setting, which may break behind its dots."""
    return _name(setting).replace(".", Markup(".<wbr>"))
