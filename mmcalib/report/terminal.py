"""Summary of a run; census, check, drift, doctor."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from mmcalib import text
from mmcalib.census.census import Census
from mmcalib.census.document import ScannedCorpus
from mmcalib.domain.items import Skipped
from mmcalib.domain.shapes import AudioShape, ImageShape, Shape
from mmcalib.report import rows
from mmcalib.results.calibration import CalibrationDocument, Corpus, YourConfiguration, grouped
from mmcalib.results.doctor import Diagnosis, Package
from mmcalib.results.part import CheckResult, verdict_words

_SPOKEN = ("fail", "warn", "skip")


def summary(calibration: CalibrationDocument, console: Console) -> None:
    """Print the summary; plain text where the console has no colours. What passed is only named:
    `report.md` has the finding of every check.
    """
    model, tool = calibration.model, calibration.tool
    console.print()
    title = f"{model.id} ({model.source}), vLLM {tool['vllm']}, transformers {tool['transformers']}"
    console.print(Text(text.plain(title), style="bold"))
    corpus, reserved = corpus_table(calibration.corpus), _reserved(calibration)
    tables = [
        (corpus_heading(calibration.corpus, "Your corpus"), corpus),
        ("What vLLM reserves", reserved),
        ("Settings, and why", settings_table(calibration)),
        ("Checks", checks_table(calibration.checks)),
    ]
    for heading, table in tables:
        console.print()
        console.print(Text(text.plain(heading), style="bold"))
        console.print(table)
        if table is corpus and (line := rows.preprocessing(calibration)):
            console.print(Text(line))
        if table is reserved and (note := rows.yours_note(calibration)):
            console.print(Text(note, style="yellow"))
    if calibration.yours and calibration.yours.diff and calibration.verdict == "pass":
        _print_diff(calibration.yours, console)
    console.print(
        verdict_line(calibration.verdict, calibration.checks, calibration.corpus.losses())
    )


def first_answer(calibration: CalibrationDocument, console: Console) -> None:
    """Print the items and the settings, before any proof."""
    corpus = calibration.corpus
    for heading, table in (
        (corpus_heading(corpus, "Your corpus"), corpus_table(corpus)),
        ("Settings, not proven yet", settings_table(calibration)),
    ):
        console.print()
        console.print(Text(text.plain(heading), style="bold"))
        console.print(table)
    console.print()


def _print_diff(yours: YourConfiguration, console: Console) -> None:
    """What to change in the user's own file."""
    console.print()
    console.print(Text(text.plain(rows.diff_heading(yours)), style="bold"))
    for line in rows.diff_text(yours).splitlines():
        style = {"+": "green", "-": "red"}.get(line[:1], "")
        console.print(Text(line, style=style), soft_wrap=True)
    console.print()


def verdict_line(verdict: str, checks: Sequence[CheckResult], losses: Sequence[str] = ()) -> Text:
    """Green only where there is nothing to look at."""
    words_of_it = verdict_words(verdict, checks, losses)
    style = "red" if verdict == "fail" else "green" if words_of_it == verdict else "yellow"
    return Text(f"verdict: {words_of_it}", style=f"bold {style}")


def corpus_heading(corpus: Corpus, whose: str) -> str:
    """How many items there are, and what the table below says of them."""
    requests = f" in {text.several(corpus.prompts, 'request')}" if corpus.prompts else ""
    skipped = f", {text.number(corpus.skipped)} skipped" if corpus.skipped else ""
    items = f"{text.several(corpus.items, 'item')}{requests}{skipped}"
    known = " and ".join(_known_by(corpus))
    return f"{whose}: {items}; tokens per item, {known}"


def _known_by(corpus: Corpus) -> list[str]:
    counted = [
        f"{modality} counted by vLLM, proven on {text.number(found.witnesses)} measured"
        for modality, found in corpus.modalities.items()
        if found.witnesses
    ]
    others = any(not found.witnesses for found in corpus.modalities.values())
    return [*counted, *(["measured"] if others or not counted else [])]


def corpus_table(corpus: Corpus) -> Table:
    """The spread of each modality, and its heaviest item."""
    table = _plain_table(header=True)
    for name in ("", "items", "min", "p50", "p90", "p99", "max", "heaviest"):
        table.add_column(name, justify="left" if name in ("", "heaviest") else "right")
    for modality, found in corpus.modalities.items():
        tokens = found.tokens
        counts = (tokens["min"], tokens["p50"], tokens["p90"], tokens["p99"], tokens["max"])
        numbers = [text.number(value) for value in (found.items, *counts)]
        table.add_row(modality, *numbers, Text(text.plain(found.heaviest)))
    return table


def _reserved(calibration: CalibrationDocument) -> Table:
    table = _plain_table(header=True)
    table.add_column("", overflow="fold")
    compared = rows.columns(calibration)
    for column in compared:
        table.add_column(column.name, justify="right", overflow="fold")
    # Beside three of them there is no room for how each is known.
    shown = None if calibration.budget.yours is None else len(compared) + 1
    if shown is None:
        table.add_column("")
    for row in rows.reservation_rows(calibration):
        table.add_row(*(Text(cell) for cell in row[:shown]))
    return table


def settings_table(calibration: CalibrationDocument) -> Table:
    """Each value with its reason, and how that is known."""
    table = _plain_table()
    table.add_column("", overflow="fold")
    table.add_column("", overflow="fold", justify="right")
    table.add_column("", overflow="fold")
    for settings, values, entry in grouped(calibration.evidence):
        names = "\n".join(text.plain(_short(setting)) for setting in settings)
        numbers = "\n".join(text.plain(value) for value in values)
        reason = f"{text.plain(entry.reason)} [{entry.label}]"
        table.add_row(Text(names), Text(numbers), Text(reason))
    return table


def _short(setting: str) -> str:
    return setting.removeprefix("limit_mm_per_prompt.").removeprefix("mm_processor_kwargs.")


def checks_table(checks: Sequence[CheckResult], *, in_full: bool = False) -> Table:
    """What is wrong in full, worst first; what passed by name, or `in_full` too."""
    table = _plain_table()
    table.add_column("", no_wrap=True)
    table.add_column("", overflow="fold")
    for status in (*_SPOKEN, *(["pass"] if in_full else [])):
        for check in (check for check in checks if check.status == status):
            line = Text(rows.check_line(check))
            for remedy in check.remedies if status != "skip" else ():
                line.append(f"\n→ {text.plain(remedy)}", style="dim")
            table.add_row(Text(rows.MARKS[status], style=rows.STYLES[status]), line)
    passed = [check.name for check in checks if check.status == "pass"]
    if passed and not in_full:
        mark = Text(rows.MARKS["pass"], style=rows.STYLES["pass"])
        table.add_row(mark, Text(text.plain(", ".join(passed))))
    return table


def _plain_table(*, header: bool = False) -> Table:
    return Table(box=None, pad_edge=False, show_header=header)


TOP_REASONS = 5


def show_scanned(
    corpus: ScannedCorpus, census: Census, skipped: Sequence[Skipped], console: Console
) -> None:
    """Print the summary; plain text where the console has no colours."""
    requests = f" in {text.several(corpus.prompts, 'request')}" if corpus.prompts else ""
    items = text.several(corpus.items, "item") + requests
    counts = f"{items}, {text.several(corpus.files, 'file')}"
    console.print()
    console.print(Text(counts, style="bold"))
    if corpus.items:
        console.print(_census_table(census))
    if corpus.distinct is not None:
        again = 1 - corpus.distinct / corpus.items
        said = f"{text.number(corpus.distinct)} distinct in content: {again:.1%} are repeats"
        console.print(Text(said))
    if skipped:
        console.print(Text(f"{text.number(len(skipped))} skipped:", style="yellow"))
    for reason, count in _reasons(skipped):
        console.print(Text(f"  {text.number(count)} × {text.plain(reason)}"), soft_wrap=True)


def _census_table(census: Census) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("", "items", "shapes", "most frequent", "largest"):
        numeric = name in ("items", "shapes")
        table.add_column(name, justify="right" if numeric else "left", overflow="fold")
    for modality in census.modalities():
        entries = census.counts(modality)
        frequent = max(entries, key=lambda entry: entry.count)
        times = f" ({text.number(frequent.count)} times)" if frequent.count > 1 else ""
        largest = max(entries, key=lambda entry: _size(entry.shape))
        table.add_row(
            modality,
            text.number(census.items(modality)),
            text.number(len(entries)),
            Text(f"{frequent.shape}{times}"),
            Text(str(largest.shape)),
        )
    return table


def _size(shape: Shape) -> float:
    """Pixels, of all frames, or seconds."""
    if isinstance(shape, AudioShape):
        return shape.duration_s
    frames = 1 if isinstance(shape, ImageShape) else shape.num_frames
    return frames * shape.width_px * shape.height_px


def _reasons(skipped: Sequence[Skipped]) -> list[tuple[str, int]]:
    """The most frequent ones, without what each says of its own file."""
    counts = Counter(text.without_particulars(entry.reason) for entry in skipped)
    ordered = sorted(counts.items(), key=lambda entry: (-entry[1], entry[0]))
    others = sum(count for _, count in ordered[TOP_REASONS:])
    return [*ordered[:TOP_REASONS], *([("other reasons", others)] if others else [])]


def diagnosed(found: Diagnosis, console: Console) -> None:
    """Print it, problems first."""
    console.print()
    title = f"mmcalib {found.mmcalib}, Python {found.host.python}, {found.host.platform}"
    console.print(Text(text.plain(title), style="bold"))
    console.print()
    console.print(Text("Installed", style="bold"))
    console.print(_packages(found.packages))
    console.print()
    console.print(Text("Checks", style="bold"))
    bare = [check.model_copy(update={"remedy": ""}) for check in found.checks]
    console.print(checks_table(bare, in_full=True))
    _remedies(found, console)
    console.print(Text(_verdict(found), style="bold"))


def _packages(packages: list[Package]) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column("", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("", overflow="fold")
    for row in _rows(packages):
        table.add_row(*map(Text, row))
    return table


def _remedies(found: Diagnosis, console: Console) -> None:
    """Each on a line of its own, however long: it is there to be copied."""
    wrong = [check for check in found.checks if check.status in ("fail", "warn")]
    for check in (check for check in wrong if check.remedy):
        console.print()
        console.print(Text(f"To cure {check.name}", style="bold"))
        console.print(Text(f"  {text.plain(check.remedy)}"), soft_wrap=True)
    console.print()


def _rows(packages: list[Package]) -> Iterator[tuple[str, str, str]]:
    for package in packages:
        purpose = package.purpose
        # What the job needs has a check of its own, which says more.
        if package.version is None and package.need == "optional":
            purpose += f": {package.install}"
        yield package.name, package.version or "—", purpose


def _verdict(found: Diagnosis) -> str:
    if found.verdict == "pass":
        return "mmcalib run works here"
    return "mmcalib run does not work here yet"
