"""Scan, check, comparison of models and GPUs, and doctor on the terminal."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from rich.console import Console, JustifyMethod, RenderableType
from rich.table import Column, Table
from rich.text import Text

from mmcalib import text
from mmcalib.domain.items import Skipped
from mmcalib.domain.shapes import UNKNOWN_CONTENT, AudioShape, Shape, weight
from mmcalib.report import rows
from mmcalib.results.calibration import CalibrationDocument, ComparedRun, Comparison
from mmcalib.results.check import CheckedItem, ReasonCount, Summary
from mmcalib.results.part import CheckResult, first_failed
from mmcalib.storage.tables import row_of

if TYPE_CHECKING:
    # Heavy modules that `mmcalib check` does not need.
    from mmcalib.census.census import Census
    from mmcalib.results.doctor import Diagnosis, ScannedCorpus


def line(words: str, style: str = "") -> Text:
    """One line, with control characters escaped."""
    return Text(text.printable(words), style=style)


def print_section(console: Console, heading: str, *parts: RenderableType) -> None:
    """Print an empty line, the heading, and what is below it."""
    for part in ("", line(heading, "bold"), *parts):
        console.print(part)


def folded(header: str = "", justify: JustifyMethod = "left") -> Column:
    """A column that breaks a long word instead of cutting it."""
    return Column(line(header), justify=justify, overflow="fold")


def plain_table(columns: Sequence[Column], cells: Iterable[Sequence[str]] = ()) -> Table:
    """A table without borders; control characters of its cells are escaped."""
    heads = any(column.header for column in columns)
    table = Table(*columns, box=None, pad_edge=False, show_header=heads)
    for row in cells:
        table.add_row(*map(line, row))
    return table


def checks_table(checks: Sequence[CheckResult]) -> Table:
    """A table of checks with their remedies, the worst first."""
    table = plain_table([Column(no_wrap=True), folded()])
    for check in rows.worst_first(checks):
        finding = Text(rows.check_line(check))
        for remedy in check.remedies if check.status in ("fail", "warn") else ():
            finding.append(f"\n→ {text.printable(remedy)}", style="dim")
        table.add_row(Text(rows.MARKS[check.status], rows.STYLES[check.status]), finding)
    return table


_TOP_REASONS = 5


def print_census(
    corpus: ScannedCorpus, census: Census, skipped: Sequence[Skipped], console: Console
) -> None:
    requests = f" in {text.plural(corpus.prompts, 'request')}" if corpus.prompts else ""
    items = text.plural(corpus.items, "item") + requests
    print_section(console, f"{items}, {text.plural(corpus.files, 'file')}")
    if corpus.items:
        console.print(_census_table(census))
    if corpus.distinct is not None:
        again = 1 - corpus.distinct / corpus.items
        words = f"{text.number(corpus.distinct)} have distinct content; {again:.1%} are repeats"
        console.print(Text(words))
    if corpus.given:
        console.print(Text(f"{text.number(corpus.given)} given by size: {UNKNOWN_CONTENT}"))
    if skipped:
        console.print(Text(f"{text.number(len(skipped))} skipped:", style="yellow"))
    # Without the details of each file.
    reasons = Counter(sorted(text.reason_kind(entry.reason) for entry in skipped)).most_common()
    if others := sum(count for _, count in reasons[_TOP_REASONS:]):
        reasons[_TOP_REASONS:] = [("other reasons", others)]
    for reason, count in reasons:
        console.print(line(f"  {text.number(count)} × {reason}"), soft_wrap=True)


def _census_table(census: Census) -> Table:
    cells = []
    for modality in census.modalities():
        entries = census.counts(modality)
        frequent = max(entries, key=lambda entry: entry.count)
        times = f" ({text.number(frequent.count)} times)" if frequent.count > 1 else ""
        largest = max(entries, key=lambda entry: _size(entry.shape))
        counts = map(text.number, (census.items(modality), len(entries)))
        cells.append((modality, *counts, f"{frequent.shape}{times}", str(largest.shape)))
    counted = [folded(head, "right") for head in ("items", "shapes")]
    return plain_table([folded(), *counted, folded("most frequent"), folded("largest")], cells)


def _size(shape: Shape) -> float:
    """Pixels, of all frames, or seconds."""
    return shape.duration_s if isinstance(shape, AudioShape) else weight(shape)


_NOUNS = {"item": "files", "prompt": "requests"}


def reason_lines(reason: ReasonCount) -> str:
    """The answer, count and reason, then the remedy. A single item has its name and shape."""
    first = reason.examples[0]
    if reason.count == 1:
        shape = "" if len(first.shapes) != 1 else f" ({first.shapes[0]})"
        words = f"{row_of(first.origin)}{shape}: {first.admission.reason}"
    else:
        places = [row_of(one.origin) for one in reason.examples]
        names = [os.path.basename(place) or place for place in places]
        more = ["..."] if reason.count > len(names) else []
        count = f"{text.number(reason.count)} {_NOUNS[reason.kind]}"
        words = f"{count}: {reason.reason} ({', '.join([*names, *more])})"
    spoken = "rejected" if reason.answer == "no" else reason.answer
    answer = f"{spoken} {text.printable(words)}"
    such = "" if reason.same_remedy else "such as: "
    return f"{answer}\n  → {such}{text.printable(reason.remedy)}" if reason.remedy else answer


def session_lines(failures: Sequence[CheckedItem]) -> Iterator[str]:
    """The turn at which each session fails, and the limit."""
    for one in failures[:_TOP_REASONS]:
        words = f"session {one.session} fails at turn {one.turn} ({one.origin})"
        yield text.printable(f"{words}: {one.admission.reason}")
    if (more := len(failures) - _TOP_REASONS) > 0:
        yield f"{text.plural(more, 'more session')} fail; --json has them"


def failure_line(calibration: CalibrationDocument) -> str:
    """Why the calibration failed; empty for a pass."""
    if calibration.verdict != "fail":
        return ""
    return f"the calibration failed at {rows.check_line(first_failed(calibration.checks))}"


def tally_line(found: Summary) -> str:
    unfit, unknown = found.no, found.unknown
    parts = [f"{text.number(found.fits)} of {text.number(found.checked)} fit"]
    parts += [f"{text.number(unfit)} {'does' if unfit == 1 else 'do'} not"] if unfit else []
    parts += [f"{text.number(unknown)} unknown"] if unknown else []
    parts += [f"{text.number(found.skipped)} not media"] if found.skipped else []
    parts += [f"{text.number(found.given)} given by size: {UNKNOWN_CONTENT}"] if found.given else []
    return ", ".join(parts)


_COMPARISON_NOTE = (
    "context: as long as the largest request with its answer, unless you set --max-model-len; "
    "at once: requests of that length; detail: mean share of default tokens that items keep"
)


def _smallest_card(runs: Sequence[ComparedRun]) -> str:
    """Advice: the card with the least memory that serves the corpus whole; empty without cards."""
    whole = [run for run in runs if run.serves_whole and run.starts]
    if not whole:
        known = all(run.starts is not None or run.problem for run in runs)
        return "No card serves the corpus whole." if known and any(r.gpu for r in runs) else ""
    least = min(run.total_bytes or 0 for run in whole)
    cards = dict.fromkeys(run.gpu for run in whole if run.total_bytes == least)
    names = [run.model.rpartition("/")[2] for run in whole if run.gpu in cards]
    card, models = " or ".join(map(str, cards)), ", ".join(dict.fromkeys(names))
    return f"The smallest card that serves the corpus whole: {card}, with {models}."


def print_comparison(comparison: Comparison, console: Console) -> None:
    """Print a row for each model and GPU, then the failures."""
    heads = ["starts", "context", "KV tokens", "KV cache", "at once", "detail"]
    priced = any(run.price_per_h for run in comparison.runs)
    heads += ["each/h"] * priced
    name = Column("model", overflow="ellipsis", min_width=10)
    figures = [Column(head, justify="right", no_wrap=True) for head in heads]
    table = plain_table([name, Column("GPU", no_wrap=True), *figures])
    for run in comparison.runs:
        table.add_row(
            line(run.model.rpartition("/")[2]),
            line(run.gpu or "—"),
            "—" if run.starts is None else "yes" if run.starts else "no",
            text.number(run.max_model_len),
            text.number(run.kv_cache_tokens),
            text.gib(run.kv_cache_bytes),
            "—" if run.max_concurrency is None else f"{run.max_concurrency:.2f}",
            text.share(run.detail_kept),
            *["—" if run.price_of_one is None else f"{run.price_of_one:.4f}"] * priced,
            style="" if run.verdict == "pass" else "red",
        )
    console.print()
    console.print(table)
    each = "; each/h: the GPU's price per hour, divided by requests at once" * priced
    console.print(Text(_COMPARISON_NOTE + each, style="dim"))
    for run in comparison.runs:
        if run.verdict == "fail":
            console.print(line(f"{run.folder} failed: {run.problem}", "red"), soft_wrap=True)
            if run.remedy:
                console.print(line(f"  try: {run.remedy}"), soft_wrap=True)
    if advice := _smallest_card(comparison.runs):
        console.print(line(advice, "bold"), soft_wrap=True)


def print_diagnosis(diagnosis: Diagnosis, console: Console) -> None:
    """Print the installation and its checks, problems first."""
    host = diagnosis.host
    print_section(console, f"mmcalib {diagnosis.mmcalib}, Python {host.python}, {host.platform}")
    packages = []
    for package in diagnosis.packages:
        # Required packages have a check of their own.
        missing = package.version is None and package.need == "optional"
        purpose = f"{package.purpose}: {package.install}" if missing else package.purpose
        packages.append((package.name, package.version or "—", purpose))
    columns = [Column(no_wrap=True), Column(no_wrap=True), folded()]
    print_section(console, "Installed", plain_table(columns, packages))
    bare = [check.model_copy(update={"remedy": ""}) for check in diagnosis.checks]
    print_section(console, "Checks", checks_table(bare))
    # Each remedy on one line, to be copied.
    for check in diagnosis.checks:
        if check.status in ("fail", "warn") and check.remedy:
            print_section(console, f"Fix for {check.name}")
            console.print(line(f"  {check.remedy}"), soft_wrap=True)
    console.print()
    if diagnosis.verdict == "pass":
        console.print(Text("mmcalib run works here", style="bold green"))
