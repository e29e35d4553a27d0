"""The result of `mmcalib run` on one screen: 25 lines of 80 columns."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from mmcalib import text
from mmcalib.domain.knobs import Label
from mmcalib.report import rows
from mmcalib.results.calibration import SERVE, CalibrationDocument, Evidence
from mmcalib.results.part import CheckResult, first_failed

MOST_LINES: Final = 25
# A table of a narrower terminal folds its cells instead of cutting them.
_NARROW: Final = 72
# An empty line, a heading and two notes.
_LEAST_NOTES: Final = 4
# The last column of a table says how its number is known; a measured one has no letter.
_LETTERS: Final[dict[Label, str]] = {
    "measured": "",
    "rehearsed": "r",
    "computed": "c",
    "assumed": "a",
    "given": "g",
}
_MEANINGS: Final = {
    "r": "r rehearsed",
    "c": "c computed",
    "a": "a assumed",
    "g": "g given by you",
}
_AXES: Final = (".width", ".height", ".num_frames", ".length")
# Lines of a note: its finding, and what to do.
_LENGTHS: Final = ((2, 1), (1, 1), (1, 0))
Row = tuple[str, ...]


def summary(
    calibration: CalibrationDocument,
    console: Console,
    *,
    serve: str = SERVE,
    folder: str = "",
    seconds: float | None = None,
    also: Sequence[str] = (),
) -> None:
    """Print the verdict, what changed against vLLM's defaults, the settings and the notes.

    A failure comes first, with its remedy, and nothing to serve. `serve` is the command that
    serves `engine.yaml`; `folder` has the results, `also` among them.
    """
    passes = calibration.verdict == "pass"
    took = "" if seconds is None else f" in {seconds:.0f} s"
    head = [_title(calibration, console.width)]
    if not passes:
        head += _failure(first_failed(calibration.checks), took, console)
    head += _wrapped(_corpus_line(calibration), "", 2, console.width)
    compared = list(_compared_rows(calibration))
    tail = list(_tail(calibration, took, serve, folder, also, console.width))
    # Both tables have an empty line above, and the first has a heading.
    used = len(head) + len(compared) + 4 + len(tail)
    settings = list(_settings(calibration)) if passes else []
    settings = _first_rows(settings, MOST_LINES - used - _LEAST_NOTES)
    letters = {row[-1] for row in (*compared, *settings)} - {""}
    known = [words for letter, words in _MEANINGS.items() if letter in letters]
    body = [_table(compared, [one.name for one in rows.columns(calibration)], console)]
    if settings:
        body.append(_table(settings, (), console))
    for line in head:
        console.print(line, soft_wrap=not line.plain.startswith(" "))
    for table in body:
        console.print()
        console.print(table)
    if known:
        rest = "other numbers are measured"
        console.print(Text(" · ".join([*known, rest]), style="dim"))
    room = MOST_LINES - used - len(settings)
    notes = list(_notes(calibration, room, console))
    for line in notes:
        console.print(line)
    if len(notes) < room:
        console.print()
    for line in tail:
        console.print(line, soft_wrap=True)


def _title(calibration: CalibrationDocument, width: int) -> Text:
    memory, tool = calibration.memory.calibrated, calibration.tool
    gpu = rows.on_gpu(memory).removeprefix(" on ").removeprefix("each of ")
    size = f" {text.gib(memory.total_bytes)}" if memory.total_bytes else ""
    before, after = f"mmcalib {tool['mmcalib']}", f"vLLM {tool['vllm']}"
    after = " · ".join([*([gpu + size] if gpu else []), after])
    model = Text(text.plain(calibration.model.id.rstrip("/")), style="bold")
    model.truncate(max(12, width - len(before) - len(after) - 6), overflow="ellipsis")
    return Text.assemble(before, " · ", model, " · ", text.plain(after))


def _corpus_line(calibration: CalibrationDocument) -> str:
    corpus = calibration.corpus
    parts: list[str] = []
    for modality, part in corpus.modalities.items():
        label = "" if part.label == "measured" else f", {part.label}"
        most = f"max {text.number(part.tokens['max'])}{'' if parts else ' tokens'}{label}"
        noun = modality if modality == "audio" or part.items == 1 else f"{modality}s"
        parts.append(f"{text.number(part.items)} {noun} ({most})")
    requests = f" in {text.several(corpus.prompts, 'request')}" if corpus.prompts else ""
    return f"{text.several(corpus.items, 'item')}{requests}: {', '.join(parts)}"


def _failure(failed: CheckResult, took: str, console: Console) -> Iterator[Text]:
    yield Text(f"FAIL{took} at {failed.code} {text.plain(failed.name)}", style="bold red")
    yield from _wrapped(text.plain(failed.detail), "  ", 4, console.width)
    for remedy in failed.remedies[:3]:
        yield from _wrapped(f"→ {text.plain(remedy)}", "  ", 2, console.width)


def _compared_rows(calibration: CalibrationDocument) -> Iterator[Row]:
    """What vLLM has with each configuration, and how the last number is known."""
    compared = rows.columns(calibration)
    memories = [one.memory for one in compared]
    last, two = memories[-1], len(compared) == 2

    def known(field: str) -> str:
        return _LETTERS[rows.label_of(last, field)]

    if any(memory.kv_cache_bytes is not None or memory.kv_cache_tokens for memory in memories):
        starts, sizes = [], []
        where = rows.on_gpu(last) if last.ranks == 1 else ""
        for memory in memories:
            nbytes, tokens = memory.kv_cache_bytes, memory.kv_cache_tokens
            short = f", {text.room(nbytes)}" if nbytes is not None and nbytes < 0 and two else ""
            starts.append(
                "—"
                if nbytes is None and tokens is None
                else f"no{short}"
                if tokens is None
                else "yes"
            )
            size = f"{text.gib(nbytes)}, " if two else ""
            sizes.append("—" if tokens is None else f"{size}{text.number(tokens)} tokens")
        most = [memory.max_concurrency for memory in memories]
        at_once = ["—" if one is None else f"{one:.1f}" for one in most]
        yield f"starts{where}", *starts, _LETTERS[last.label or "rehearsed"]
        yield "KV cache", *sizes, known("kv_cache_tokens")
        yield "full-length requests", *at_once, known("max_concurrency")
    if last.activation_peak_bytes is not None:
        peaks = [text.gib(memory.activation_peak_bytes) for memory in memories]
        yield "activation peak", *peaks, known("activation_peak_bytes")
    caches = [f"{text.number(one.budget.encoder_budget_tokens)} tokens" for one in compared]
    yield "largest item admitted", *caches, "c"
    parts = {m: p for m, p in calibration.corpus.modalities.items() if p.kept is not None}
    if parts:
        less = [
            f"{modality} {text.share(part.kept.mean)}"
            for modality, part in parts.items()
            if part.kept and part.kept.items_smaller
        ]
        others = ["others 100%"] if less and len(less) < len(parts) else []
        unknown = ["—"] * (len(compared) - 2)
        labels = {_LETTERS[part.label] for part in parts.values()}
        yield "detail kept", "100%", *unknown, ", ".join([*less, *others]) or "100%", max(labels)
    if (traffic := calibration.traffic) is not None:
        served = [traffic.default, *([None] * (len(compared) - 2)), traffic.calibrated]
        refused = ["—" if s is None else f"{len(s.refused)} of {s.requests:,}" for s in served]
        yield "requests rejected", *refused, "r"


def _first_rows(found: list[Row], most: int) -> list[Row]:
    if len(found) > most:
        found[most - 1 :] = [(f"and {len(found) - most + 1} more", "", "", "")]
    return found


def _settings(calibration: CalibrationDocument) -> Iterator[Row]:
    """Each setting with its value and the first clause of its reason."""
    given = [e for e in calibration.evidence if e.label == "given"]
    evidence = [e for e in calibration.evidence if e.label != "given" or len(given) == 1]
    for name, group in groupby(evidence, key=lambda e: e.setting.partition(".")[0]):
        entries = list(group)
        if name == "limit_mm_per_prompt":
            counts = [e for e in entries if not e.setting.endswith(_AXES)]
            limits = ", ".join(f"{e.setting.split('.')[1]} {e.value}" for e in counts)
            yield name, limits, _reason(counts), _letter(counts)
            hints = [e for e in entries if e.setting.endswith(_AXES)]
            for modality, sizes in groupby(hints, key=lambda e: e.setting.split(".")[1]):
                size = list(sizes)
                value = f"{modality} {'×'.join(str(e.value) for e in size)}"
                yield "  size hint", value, _reason(size), _letter(size)
            continue
        for entry in entries:
            parts = entry.setting.split(".")
            # What only accompanies a cap has no item that set it.
            if len(parts) > 2 and not entry.exemplar and entry.label == "computed":
                continue
            short = f"{parts[1].removesuffix('_kwargs')}…{parts[-1]}" if len(parts) > 2 else name
            yield short, f"{entry.value}", _reason([entry]), _letter([entry])
    if len(given) > 1:
        yield "given by you", "", ", ".join(f"{e.setting} {e.value}" for e in given), "g"


def _reason(entries: Sequence[Evidence]) -> str:
    places = dict.fromkeys(os.path.basename(e.exemplar) for e in entries if e.exemplar)
    names = f" ({', '.join(places)})" if places else ""
    return entries[0].reason.partition(";")[0] + names


def _letter(entries: Iterable[Evidence]) -> str:
    return max(_LETTERS[entry.label] for entry in entries)


def _table(cells: Sequence[Row], heads: Sequence[str], console: Console) -> Table:
    fits = console.width >= _NARROW
    names = ("", *heads, "") if heads else ("",) * 4
    columns = [
        Column(name, no_wrap=fits, overflow="ellipsis" if fits else "fold") for name in names
    ]
    if fits and len(heads) > 2:
        columns[-2].max_width = 18
    elif fits and not heads:
        columns[0].max_width, columns[1].max_width = 24, 26
        # The reason has what the others leave.
        columns[2].ratio = 1
    columns[-1].style = "dim"
    table = Table(*columns, box=None, pad_edge=False, show_header=bool(heads), expand=not heads)
    for row in cells:
        table.add_row(*(Text(text.plain(cell)) for cell in row))
    return table


def _notes(calibration: CalibrationDocument, room: int, console: Console) -> Iterator[Text]:
    """The checks to look at, the worst first, in as many lines as there is room for."""
    first = first_failed(calibration.checks) if calibration.verdict == "fail" else None
    checks = [
        check
        for status in ("fail", "warn", "skip")
        for check in calibration.checks
        if check.status == status and check is not first
    ]
    groups = [list(group) for _, group in groupby(checks, key=lambda c: (c.status, c.code))]
    yours = rows.yours_note(calibration)
    if not groups and not yours:
        return
    yield Text()
    if groups:
        codes = " ".join(dict.fromkeys(check.code for check in checks))
        yield Text(f"{text.several(len(groups), 'note')} (mmcalib list checks {codes})")
    if yours:
        yield from _wrapped(yours, "  ", 2, console.width)
    # Below an empty line and the heading.
    most = max(2, room - 2 - bool(yours))
    notes: list[list[Text]] = []
    for detail, remedy in _LENGTHS:
        notes = [list(_note(group, detail, remedy, console.width)) for group in groups]
        if sum(map(len, notes)) < most:
            break
    shown = [line for note in notes for line in note]
    if len(shown) > most:
        shown[most - 1 :] = [Text(f"  and {len(shown) - most + 1} more in report.md")]
    yield from shown


def _note(group: Sequence[CheckResult], lines: int, remedies: int, width: int) -> Iterator[Text]:
    first = group[0]
    names = ", ".join(check.name for check in group)
    style = {"fail": "red", "warn": "yellow"}.get(first.status, "dim")
    found = list(_wrapped(text.plain(f"{first.code} {names}: {first.detail}"), "  ", lines, width))
    found[0].stylize(style, 2, 2 + len(first.code))
    yield from found
    if first.status != "skip":
        for remedy in first.remedies[:remedies]:
            yield from _wrapped(f"→ {text.plain(remedy)}", "    ", 1, width)


def _wrapped(words: str, indent: str, most: int, width: int) -> Iterator[Text]:
    """At most so many lines, the last one cut with an ellipsis."""
    room = max(20, width - len(indent))
    lines = Text(words).wrap(Console(width=room), room, overflow="fold")
    for place, line in enumerate(lines[:most]):
        shown = line.plain.rstrip()
        if place == most - 1 and len(lines) > most:
            shown = f"{shown} {lines[most].plain}"
        cut = Text(shown)
        cut.truncate(room, overflow="ellipsis")
        yield Text(indent) + cut


def _tail(
    calibration: CalibrationDocument,
    took: str,
    serve: str,
    folder: str,
    also: Sequence[str],
    width: int,
) -> Iterator[Text]:
    """The verdict, the command that serves, and where the details are."""
    report = os.path.join(folder, "report.html")
    if calibration.verdict == "pass":
        verdict = f"PASS{took}{rows.verdict_of(calibration).removeprefix('pass')}."
        command = f"Serve:  {text.plain(serve)}"
        one_line = f"{verdict} {command}"
        fits = len(one_line) <= width
        lines = [Text(one_line)] if fits else [*_wrapped(verdict, "", 2, width), Text(command)]
        for line in lines:
            line.stylize("bold")
            yield line
    if also:
        yield Text(f"Also:    {text.plain(', '.join(also))}")
    issue = f"mmcalib report {Path(folder)} --format issue" if folder else ""
    yield Text(" · for an issue: ".join(filter(None, [f"Details: {text.plain(report)}", issue])))
