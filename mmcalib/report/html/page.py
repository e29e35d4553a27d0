"""The page, headline, what-if."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from mmcalib import text
from mmcalib.derive.admission import admit
from mmcalib.domain.knobs import Label
from mmcalib.report import rows, terminal_memory
from mmcalib.report.html.frontier import frontiers
from mmcalib.report.html.items import CostlyItem
from mmcalib.report.html.memory import memory
from mmcalib.report.html.serving import cache, traffic
from mmcalib.report.html.sizes import distributions, sizes
from mmcalib.report.markdown import issue
from mmcalib.results.calibration import CalibrationDocument, grouped
from mmcalib.results.engine_yaml import engine_yaml
from mmcalib.results.part import verdict_words


@dataclass(frozen=True, slots=True)
class Headline:
    """`before` is empty where there is nothing to compare with; `bad` is what needs a look."""

    name: str
    before: str
    after: str
    detail: str
    label: Label
    bad: bool = False


def headlines(calibration: CalibrationDocument) -> tuple[Headline, Headline, Headline]:
    """In this order, whatever is known of them."""
    return _kv_cache(calibration), _worst_item(calibration), _rejected(calibration)


def _kv_cache(calibration: CalibrationDocument) -> Headline:
    before, after = calibration.memory.default, calibration.memory.calibrated
    if after.kv_cache_bytes is None:
        budget = calibration.budget
        default, now = (b.encoder_budget_tokens for b in (budget.default, budget.calibrated))
        return Headline(
            "Encoder budget, tokens",
            text.number(default),
            text.number(now),
            "The KV cache is not known: no GPU was named. mmcalib run --gpu NAME predicts it.",
            budget.calibrated.label,
        )
    starts = after.kv_cache_tokens is not None
    at_once = (
        f", {text.number(after.max_concurrency)} requests of full length at once"
        if after.max_concurrency is not None
        else ""
    )
    none = "none" if before.kv_cache_bytes is not None else ""
    return Headline(
        f"KV cache tokens{rows.on_gpu(after)}",
        text.number(before.kv_cache_tokens) if before.kv_cache_tokens else none,
        text.number(after.kv_cache_tokens) if starts else "would not start",
        f"{text.gib(after.kv_cache_bytes)}{at_once}. By default {rows.kv_cache(before)}.",
        after.labels.get("kv_cache_tokens", after.label or "measured"),
        bad=not starts,
    )


def _worst_item(calibration: CalibrationDocument) -> Headline:
    """The largest item of the corpus under the calibrated settings, in the encoder cache that has
    to hold it.
    """
    name, parts = "Largest item, of the encoder cache", calibration.costs.modalities
    known = {modality: [one.embeds for one in part.known] for modality, part in parts.items()}
    largest = {modality: max(embeds) for modality, embeds in known.items() if embeds}
    if not largest:
        return Headline(name, "", "—", "The corpus has no items.", "measured")
    worst = max(largest, key=largest.__getitem__)
    cache = calibration.budget.calibrated.encoder_budget_tokens
    most, found = largest[worst], calibration.corpus.modalities.get(worst)
    before = calibration.budget.default.encoder_budget_tokens
    item = f"One {worst}, {text.plain(found.heaviest)}" if found else f"One {worst}"
    return Headline(
        name,
        "",
        f"{text.number(most)} of {text.number(cache)}",
        f"{item}, in tokens. By default the cache holds {text.number(before)}.",
        found.label if found else "measured",
        bad=cache is not None and most > cache,
    )


def _rejected(calibration: CalibrationDocument) -> Headline:
    """Shapes of the corpus that the configuration does not admit, and what the replay said."""
    replay = calibration.startup.replay if calibration.startup else None
    said = (
        f"Replay: {replay.rejected} of {text.number(replay.admitted)} requests rejected, measured."
        if replay
        else "No request was replayed."
    )
    parts = calibration.costs.modalities.values()
    known = [one.shape for part in parts for one in part.known]
    refused = sum(len(part.refused) for part in parts)
    gate = calibration.gate
    over = sum(admit(gate, shape).answer == "no" for shape in known)
    rejected = refused + over
    others = sum(part.unlisted.shapes for part in parts if part.unlisted)
    # Those that are not listed cost no more than the lightest that is.
    total = refused + len(known) + (0 if over else others)
    which = "costliest shapes" if over and others else "shapes"
    return Headline(
        "Items that would be rejected",
        "",
        "none" if not rejected else f"{text.number(rejected)} shapes",
        f"{text.number(total - rejected)} of {text.number(total)} {which} of the corpus are "
        f"admitted. {_assumed(calibration)}{said}",
        "computed",
        bad=bool(rejected),
    )


def _assumed(calibration: CalibrationDocument) -> str:
    """Requests of which nobody said how many items they carry."""
    return "".join(
        f"Requests of more than {entry.value} {name} are rejected, which is assumed. "
        for name in calibration.corpus.modalities
        for entry in calibration.evidence
        if entry.label == "assumed" and entry.setting in _counts_of(name)
    )


def _counts_of(modality: str) -> tuple[str, str]:
    setting = f"limit_mm_per_prompt.{modality}"
    return setting, f"{setting}.count"


def facts(calibration: CalibrationDocument) -> Iterator[str]:
    """The line below the title: what was calibrated, and for what."""
    corpus = calibration.corpus
    yield f"{text.number(corpus.items)} items"
    if corpus.prompts:
        yield f"{text.number(corpus.prompts)} requests"
    if corpus.skipped:
        yield f"{text.number(corpus.skipped)} skipped"
    if calibration.memory.calibrated.gpu:
        yield text.plain(calibration.memory.calibrated.gpu)
    yield f"vLLM {text.plain(calibration.tool['vllm'])}"
    yield text.plain(calibration.created_at.replace("T", " ")[:16])


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
        environment.filters[name] = getattr(text, name)
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
        served=terminal_memory,
        items=items,
        thumbnails=thumbnails,
        redacted=redacted,
        words=rows,
        columns=[column.name for column in rows.columns(shown)],
        rows=rows.reservation_rows(shown),
        diff=escape(rows.diff_text(shown.yours)) if shown.yours else "",
        settings=grouped(shown.evidence),
        verdict=verdict_words(shown.verdict, shown.checks, shown.corpus.losses()),
        checks=sorted(shown.checks, key=lambda check: _ORDER.index(check.status)),
        labels=_LABELS,
    )


def _visible(value: object) -> object:
    """Whatever is no markup, without characters that hide or turn text around."""
    return text.plain(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _name(value: object) -> Markup:
    """Foreign text: escaped, control characters visible, and its direction its own."""
    return Markup("<bdi>") + escape(text.plain(str(value))) + Markup("</bdi>")


def _dotted(setting: str) -> Markup:
    """The name of a setting, which may break behind its dots."""
    return _name(setting).replace(".", Markup(".<wbr>"))
