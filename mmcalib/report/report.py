"""The report in every form of `--format`."""

from __future__ import annotations

import io
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final, Literal, Self

from markupsafe import Markup, escape
from pydantic import ConfigDict
from rich.console import Console

from mmcalib import text
from mmcalib.domain.knobs import Label
from mmcalib.gate.admission import admit
from mmcalib.report import ConfigurationName, ReportName, rows
from mmcalib.report.html.frontier import frontiers
from mmcalib.report.html.items import CostlyItem, costliest_items
from mmcalib.report.html.memory import cache, memory, traffic
from mmcalib.report.html.redact import redacted
from mmcalib.report.html.sizes import distributions, sizes
from mmcalib.report.markdown import environment, issue, markdown
from mmcalib.report.summary import summary
from mmcalib.results.calibration import (
    SERVE,
    CalibrationDocument,
    group_evidence,
    with_environment,
)
from mmcalib.results.engine_yaml import yaml_entry
from mmcalib.results.part import DocumentPart
from mmcalib.text import printable


@dataclass(frozen=True, slots=True)
class Headline:
    """One card; `before` is empty without a comparison, and `bad` marks a problem."""

    name: str
    before: str
    after: str
    detail: str
    label: Label
    bad: bool = False


def _kv_cache(calibration: CalibrationDocument) -> Headline:
    before, after = calibration.memory.default, calibration.memory.calibrated
    if after.kv_cache_bytes is None:
        budget = calibration.budget
        return Headline(
            "Encoder budget, tokens",
            text.number(budget.default.encoder_budget_tokens),
            text.number(budget.calibrated.encoder_budget_tokens),
            "mmcalib run --gpu NAME predicts the KV cache of that GPU.",
            budget.calibrated.label,
        )
    starts, most = after.starts is not False, after.max_concurrency
    at_once = "" if most is None else f", {text.number(most)} full-length requests at once"
    none = "none" if before.kv_cache_bytes is not None else ""
    return Headline(
        f"KV cache tokens{rows.on_gpu(after)}",
        text.number(before.kv_cache_tokens) if before.kv_cache_tokens else none,
        text.number(after.kv_cache_tokens) if starts else "does not start",
        f"{text.gib(after.kv_cache_bytes)}{at_once}. vLLM's defaults: {rows.kv_cache(before)}.",
        rows.label_of(after, "kv_cache_tokens"),
        bad=not starts,
    )


def _worst_item(calibration: CalibrationDocument) -> Headline:
    """Compare the corpus' largest item with the encoder cache, both in tokens."""
    name, parts = "Largest item in the encoder cache", calibration.costs.modalities
    largest = {
        modality: max(one.embeds for one in part.known)
        for modality, part in parts.items()
        if part.known
    }
    if not largest:
        return Headline(name, "", "—", "The corpus has no items.", "measured")
    worst = max(largest, key=largest.__getitem__)
    before = calibration.budget.default.encoder_budget_tokens
    cache = calibration.budget.calibrated.encoder_budget_tokens
    found = calibration.corpus.modalities.get(worst)
    item = f"One {worst}, {found.heaviest}" if found else f"One {worst}"
    return Headline(
        name,
        "",
        f"{text.number(largest[worst])} of {text.number(cache)}",
        f"{item}, in tokens. vLLM's defaults: {text.number(before)}.",
        found.label if found else "measured",
        bad=largest[worst] > cache,
    )


def _rejected(calibration: CalibrationDocument) -> Headline:
    name = "Rejected items"
    replay = calibration.startup.replay if calibration.startup else None
    replayed = (
        f"Replay: {replay.rejected} of {text.number(replay.admitted)} requests rejected."
        if replay
        else "mmcalib replayed no requests."
    )
    parts = calibration.costs.modalities.values()
    known = [one.shape for part in parts for one in part.known]
    refused = sum(len(part.refused) for part in parts)
    over = sum(admit(calibration.gate, shape).answer == "no" for shape in known)
    rejected = refused + over
    others = sum(part.unlisted.shapes for part in parts if part.unlisted)
    # Unlisted shapes cost no more than the lightest listed one.
    total = refused + len(known) + (0 if over else others)
    which = "costliest shapes" if over and others else "shapes"
    assumed = "".join(
        f"vLLM rejects requests of more than {entry.value} {modality} (assumed). "
        for modality in calibration.corpus.modalities
        for entry in calibration.evidence
        if entry.label == "assumed"
        and entry.setting.removesuffix(".count") == f"limit_mm_per_prompt.{modality}"
    )
    return Headline(
        name,
        "",
        "none" if not rejected else f"{text.number(rejected)} shapes",
        f"vLLM admits {text.number(total - rejected)} of {text.number(total)} {which} of the "
        f"corpus. {assumed}{replayed}",
        "computed",
        bad=bool(rejected),
    )


@dataclass(frozen=True)
class Report:
    """A calibration and how to show it. `serve_with` is the command that serves the configuration;
    raised media limits are added to it. `folder` has the results. `redact_paths` hides file names
    of the data and folders of this machine. With `thumbnails` the page shows the costliest items
    and reads their files, all or those below `roots`, which a calibration from elsewhere needs.
    """

    calibration: CalibrationDocument
    serve_with: str
    thumbnails: bool = True
    redact_paths: bool = False
    roots: Collection[Path] | None = None
    folder: str = ""

    @property
    def shown(self) -> CalibrationDocument:
        """The calibration, redacted if asked for."""
        return self._redacted[0]

    @property
    def command(self) -> str:
        """The command that serves the configuration, redacted if asked for."""
        serve = SERVE if self.redact_paths else self.serve_with
        return with_environment(self.calibration.server.environment, serve)

    @cached_property
    def items(self) -> list[CostlyItem]:
        """The costliest items, as the page shows them."""
        return costliest_items(
            self.calibration, thumbnails=self.thumbnails, names=self._redacted[1], roots=self.roots
        )

    @cached_property
    def _redacted(self) -> tuple[CalibrationDocument, dict[str, str] | None]:
        return redacted(self.calibration) if self.redact_paths else (self.calibration, None)


def html(report: Report) -> str:
    """One page with figures and pictures of the costliest items."""
    made = environment(
        "mmcalib.report.html",
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_visible,
    )
    made.filters["name"] = _name
    # A setting may break after its dots.
    made.filters["dotted"] = lambda setting: _name(setting).replace(".", Markup(".<wbr>"))
    shown = report.shown
    # Without comments: the page gives the reasons of the settings below.
    settings = (yaml_entry(*item) for item in shown.engine_config.items() if item[1] is not None)
    return made.get_template("report.html.j2").render(
        c=shown,
        words=rows,
        headlines=(_kv_cache(shown), _worst_item(shown), _rejected(shown)),
        serve=report.command,
        yaml=escape("".join(settings)),
        tokens=list(distributions(shown)),
        sizes=list(sizes(shown)),
        frontiers=list(frontiers(shown)),
        issue=escape(issue(shown)),
        memory=memory(shown),
        cache=cache(shown.cache) if shown.cache else None,
        traffic=traffic(shown.traffic) if shown.traffic else None,
        items=report.items,
        thumbnails=report.thumbnails,
        redacted=report.redact_paths,
        diff=escape(rows.diff_text(shown.yours)) if shown.yours else "",
        settings=group_evidence(shown.evidence),
        verdict=rows.verdict_of(shown),
        checks=rows.worst_first(shown.checks),
    )


def _visible(value: object) -> object:
    """Escape control and bidirectional characters of text that is not markup."""
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _name(value: object) -> Markup:
    """Foreign text: escaped, control characters visible, and its direction its own."""
    return Markup("<bdi>") + escape(printable(str(value))) + Markup("</bdi>")


def md(report: Report) -> str:
    return markdown(report.shown, report.command)


def plain_text(report: Report) -> str:
    """The summary that `mmcalib run` ends with, without colours."""
    page, folder = io.StringIO(), "" if report.redact_paths else report.folder
    summary(report.shown, Console(file=page, highlight=False), serve=report.command, folder=folder)
    return page.getvalue()


# By the names and in the order of `REPORT_NAMES`.
REPORTS: Final[Mapping[str, Callable[[Report], str]]] = {
    "html": html,
    "md": md,
    "text": plain_text,
    "issue": lambda report: issue(report.calibration),
}


class WrittenReport(DocumentPart):
    """A file that `report --json` wrote."""

    model_config = ConfigDict(title="Written")

    written: str
    format: Literal[ReportName, ConfigurationName]
    bytes: int

    @classmethod
    def of(cls, path: Path, name: str) -> Self:
        found = {"written": str(path), "format": name, "bytes": path.stat().st_size}
        return cls.model_validate(found)
