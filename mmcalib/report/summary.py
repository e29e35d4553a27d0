"""The result of `mmcalib run` on one screen: 25 lines of 80 columns."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Final

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from mmcalib import text
from mmcalib.checks.catalogue import DETAIL_KEPT
from mmcalib.domain.knobs import Label
from mmcalib.report import rows
from mmcalib.results.calibration import SERVE, CalibrationDocument, Corpus, Evidence
from mmcalib.results.memory import Memory
from mmcalib.results.part import CheckResult, count_warned, first_failed

MOST_LINES: Final = 25
# A narrower terminal folds cells instead of cutting them.
_NARROW: Final = 72
# An empty line, a heading and a note.
_LEAST_NOTES: Final = 3
# A letter in the last column stands for one of these; a measured number has none.
_LABELS: Final = ("rehearsed on a simulated GPU", "computed", "assumed", "given")
# From the best known to the least.
_KNOWN: Final = ("measured", "given", "rehearsed", "computed", "assumed")
# A longer reason leaves out the item that set the value.
_REASON: Final = 36
_NOTES: Final = ("other failure", "skipped check", "assumption", "warning")
# No picture has a longer edge: a larger `longest_edge` is an area.
_LONGEST_EDGE_PX: Final = 1 << 16
_AXES: Final = (".width", ".height", ".num_frames", ".length")


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
    width, passes = console.width, calibration.verdict == "pass"
    took = "" if seconds is None else f" in {seconds:.0f} s"
    head, compared = [_title(calibration, width)], list(_compared_rows(calibration))
    if not passes:
        head += _failure(first_failed(calibration.checks), took, width)
    head += _wrapped(corpus_line(calibration.corpus), "", 2, width)
    head += _wrapped(rows.chat_line(calibration) if passes else "", "", 2, width)
    tail = list(_tail(calibration, took, serve, folder, also, width))
    # Each table has an empty line above; the first has a heading, the last a line below.
    room = MOST_LINES - len(head) - len(compared) - len(tail) - 4
    # Remedies first, because they have a price.
    settings = sorted(_settings(calibration) if passes else (), key=lambda row: row[-1] != "r")
    if len(settings) > (most := room - _LEAST_NOTES):
        # Then what makes items smaller.
        settings.sort(key=lambda row: (row[-1] != "r", "…" not in row[0]))
        others = settings[most - 1 :]
        named = ", ".join(f"{name.strip()} {value}" for name, value, *_ in others)
        settings[most - 1 :] = [(f"and {len(others)} more", "", named, "")]
    notes = list(_notes(calibration, room - len(settings), width))
    if len(notes) < room - len(settings):
        notes.append(Text())
    letters = {row[-1] for row in (*compared, *settings)}
    known = [f"{label[0]} {label}" for label in _LABELS if label[0] in letters]
    legend = Text(" · ".join([*known, "the rest is measured"]), "dim")
    tables = [_table(compared, [one.name for one in rows.columns(calibration)], width)]
    tables += [_table(settings, (), width)] if settings else []
    spaced = [part for table in tables for part in (Text(), table)]
    for part in (*head, *spaced, legend, *notes, *tail):
        console.print(part, soft_wrap=part in tail)


def _title(calibration: CalibrationDocument, width: int) -> Text:
    memory, tool = calibration.memory.calibrated, calibration.tool
    gpu = rows.gpus_of(memory)
    size = f" {text.gib(memory.total_bytes)}" if memory.total_bytes else ""
    version = tool["mmcalib"].partition(".dev")[0]
    before, after = f"mmcalib {version} · ", f" · vLLM {tool['vllm']}"
    after = f" · {gpu}{size}{after}" if gpu else after
    model = Text(text.printable(calibration.model.id.rstrip("/")), "bold")
    model.truncate(max(12, width - len(before) - len(after)), overflow="ellipsis")
    return Text.assemble(text.printable(before), model, text.printable(after))


def _failure(failed: CheckResult, took: str, width: int) -> Iterator[Text]:
    yield Text(text.printable(f"FAIL{took} at {failed.code} {failed.name}"), "bold red")
    yield from _wrapped(failed.detail, "  ", 4, width)
    for remedy in failed.remedies[:3]:
        yield from _wrapped(f"→ {remedy}", "  ", 2, width)


def corpus_line(corpus: Corpus) -> str:
    """The number of items and the most tokens of one, by modality."""
    parts: list[str] = []
    for modality, part in corpus.modalities.items():
        label = "" if part.label == "measured" else f", {part.label}"
        most = f"max {text.number(part.tokens['max'])}{'' if parts else ' tokens'}{label}"
        noun = modality if modality == "audio" or part.items == 1 else f"{modality}s"
        parts.append(f"{text.number(part.items)} {noun} ({most})")
    requests = f" in {text.plural(corpus.prompts, 'request')}" if corpus.prompts else ""
    return f"{text.plural(corpus.items, 'item')}{requests}: {', '.join(parts)}"


def _compared_rows(calibration: CalibrationDocument) -> Iterator[rows.Row]:
    """The figures of each configuration, and the letter for how the last one is known."""
    compared = rows.columns(calibration)
    memories = [one.memory for one in compared]
    last, two = memories[-1], len(compared) == 2

    def figures(memory: Memory) -> tuple[str, ...]:
        nbytes, tokens = memory.kv_cache_bytes or 0, memory.kv_cache_tokens
        starts = "—" if tokens is None else "yes"
        if memory.starts is False:
            starts = f"no, {text.remaining(nbytes)}" if nbytes < 0 and two else "no"
        size = f"{text.gib(nbytes)}, " if two else ""
        size = "—" if tokens is None else f"{size}{text.number(tokens)} tokens"
        most = memory.max_concurrency
        at_once = "—" if most is None else f"{most:.2f}x{' at full length' if two else ''}"
        return starts, size, at_once, text.gib(memory.activation_peak_bytes)

    names = {
        "kv_cache_bytes": f"starts{rows.on_gpu(last) if last.ranks == 1 else ''}",
        "kv_cache_tokens": "KV cache",
        "max_concurrency": "max concurrency",
        "activation_peak_bytes": "activation peak",
    }
    for (field, name), *cells in zip(names.items(), *map(figures, memories), strict=True):
        if any(getattr(memory, field) is not None for memory in memories):
            yield name, *cells, _letter(rows.label_of(last, field))
        elif field == "kv_cache_bytes" and last.gpu:
            yield name, *("—" for _ in memories[1:]), "not rehearsed", ""
    caches = [f"{text.number(one.budget.encoder_budget_tokens)} tokens" for one in compared]
    yield "encoder token budget", *caches, "c"
    unknown = ["—"] * (len(compared) - 2)
    if parts := {m: p for m, p in calibration.corpus.modalities.items() if p.kept}:
        less = [
            f"{modality} {text.share(part.kept.mean)}"
            for modality, part in parts.items()
            if part.kept and part.kept.items_smaller
        ]
        less += ["others 100%"] if 0 < len(less) < len(parts) else []
        labels = max(_letter(part.label) for part in parts.values())
        kept = ", ".join(less) or "100%"
        least = min((part.least_kept or 1.0 for part in parts.values()), default=1.0)
        kept += f", ≥ {text.share(least)} of originals" if least < 1 else ""
        yield "detail kept", "100%", *unknown, kept, labels
    if traffic := calibration.traffic:
        both = traffic.default, traffic.calibrated
        name = "requests rejected" if calibration.corpus.prompts else "prompts rejected"
        refused = [
            "—" if one is None else f"{len(one.refused)} of {one.requests:,}" for one in both
        ]
        yield name, refused[0], *unknown, refused[1], "r"
        # A failure takes the room of one line.
        if calibration.verdict == "pass":
            holds = rows.load_cells(*both)
            yield "holds under load", holds[0], *unknown, holds[1], "r"


def _settings(calibration: CalibrationDocument) -> Iterator[rows.Row]:
    """Each setting with its value, the first clause of its reason, and a letter."""
    given = [e for e in calibration.evidence if e.label == "given"]
    evidence = [e for e in calibration.evidence if e.label != "given" or len(given) == 1]
    for name, group in groupby(evidence, key=lambda e: e.setting.partition(".")[0]):
        entries = list(group)
        if name == "limit_mm_per_prompt":
            counts = [e for e in entries if not e.setting.endswith(_AXES)]
            counts.sort(key=lambda e: e.value == 0)
            for off, alike in groupby(counts, key=lambda e: e.value == 0):
                shown = list(alike)
                limits = ", ".join(f"{e.setting.split('.')[1]} {e.value}" for e in shown)
                yield "  off" if off else name, limits, *_reason(shown)
            hints = [e for e in entries if e.setting.endswith(_AXES)]
            for modality, axes in groupby(hints, key=lambda e: e.setting.split(".")[1]):
                sizes = list(axes)
                value = f"{modality} {'×'.join(str(e.value) for e in sizes)}"
                yield "  size hint", value, *_reason(sizes)
            continue
        for entry in entries:
            parts = entry.setting.split(".")
            # An option that only accompanies a cap has no item that set it.
            if len(parts) > 2 and not entry.exemplar and entry.label == "computed":
                continue
            short = f"{parts[1].removesuffix('_kwargs')}…{parts[-1]}" if len(parts) > 2 else name
            is_area = short.endswith("_edge") and entry.value > _LONGEST_EDGE_PX
            yield short, f"{entry.value}{' pixels' * is_area}", *_reason([entry])
    if len(given) > 1:
        yield "given by you", "", ", ".join(f"{e.setting} {e.value}" for e in given), "g"


def _reason(entries: Sequence[Evidence]) -> tuple[str, str]:
    least = max(entries, key=lambda entry: _KNOWN.index(entry.label))
    reason = least.reason.partition(";")[0]
    places = dict.fromkeys(os.path.basename(e.exemplar) for e in entries if e.exemplar)
    named = f"{reason} ({', '.join(places)})"
    return named if places and len(named) <= _REASON else reason, _letter(least.label)


def _letter(label: Label) -> str:
    return "" if label == "measured" else label[0]


def _table(cells: Sequence[rows.Row], heads: Sequence[str], width: int) -> Table:
    fits = width >= _NARROW
    names = ("", *heads, "") if heads else ("",) * 4
    columns = [
        Column(name, no_wrap=fits, overflow="ellipsis" if fits else "fold") for name in names
    ]
    if fits and len(heads) > 2:
        columns[-2].max_width = 18
    elif fits and heads:
        # Without it, Rich takes the last column for the others.
        columns[1].max_width = columns[2].max_width = 26
    elif fits and not heads:
        columns[0].max_width, columns[1].max_width = 24, 26
        # The reason has the rest of the width.
        columns[2].ratio = 1
    columns[-1].style = "dim"
    table = Table(*columns, box=None, pad_edge=False, show_header=bool(heads), expand=not heads)
    for row in cells:
        table.add_row(*(Text(text.printable(cell)) for cell in row))
    return table


def _notes(calibration: CalibrationDocument, room: int, width: int) -> Iterator[Text]:
    """The checks to look at, the worst first, as long as there is room for."""
    first = first_failed(calibration.checks) if calibration.verdict == "fail" else None
    checks = [
        check
        for check in rows.worst_first(calibration.checks)
        if check.status != "pass" and check is not first
    ]
    groups = [
        list(group) for _, group in groupby(checks, key=lambda c: (c.status, c.code or c.name))
    ]
    yours = list(_wrapped(rows.yours_note(calibration), "  ", 2, width))
    if not groups and not yours:
        return
    most, shown = max(1, room - 2), list[Text]()
    for lines, remedies in ((2, 1), (1, 1), (1, 0)):
        notes = (line for group in groups for line in _note(group, lines, remedies, width))
        shown = [*yours, *notes]
        if len(shown) < most:
            break
    if len(shown) <= most:
        yield Text()
    elif len(shown) > (most := most + 1):
        shown[most - 1 :] = [Text(f"  and {len(shown) - most + 1} more in report.md")]
    if groups:
        assumed, warned = count_warned(checks)
        others = (sum(check.status == status for check in checks) for status in ("fail", "skip"))
        counts = zip((*others, assumed, warned), _NOTES, strict=True)
        spoken = ", ".join(text.plural(count, noun) for count, noun in counts if count)
        yield from _wrapped(f"{spoken} (see mmcalib list checks)", "", 1, width)
    yield from shown


def _note(group: Sequence[CheckResult], lines: int, remedies: int, width: int) -> Iterator[Text]:
    first = group[0]
    heads = [check.detail.partition(",")[0] for check in group]
    rest = first.detail.removeprefix(heads[0])
    words = text.printable(f"{first.code} {' and '.join(dict.fromkeys(heads))}{rest}")
    if lines == 1 and len(words) > width - 2:
        # Whole clauses, if one fits.
        ends = [end.start() for end in re.finditer(r"[,;:.] ", words[: width - 2])]
        words = words[: ends[-1]] if ends else words
    found = list(_wrapped(words, "  ", lines, width))
    found[0].stylize(rows.STYLES[first.status], 2, 2 + len(first.code))
    yield from found
    for remedy in first.remedies[:remedies] if first.status != "skip" else ():
        yield from _wrapped(f"→ {remedy}", "    ", 1, width)


def _wrapped(words: str, indent: str, most: int, width: int) -> Iterator[Text]:
    """Up to `most` lines, the last one cut with an ellipsis."""
    room = max(20, width - len(indent))
    lines = Text(text.printable(words)).wrap(Console(width=room), room, overflow="fold")
    for place, line in enumerate(lines[:most]):
        is_cut = place == most - 1 and len(lines) > most
        shown = Text(
            f"{line.plain.rstrip()} {lines[most].plain}" if is_cut else line.plain.rstrip()
        )
        shown.truncate(room, overflow="ellipsis")
        if shown.plain:
            yield Text(indent) + shown


def _tail(
    calibration: CalibrationDocument,
    took: str,
    serve: str,
    folder: str,
    also: Sequence[str],
    width: int,
) -> Iterator[Text]:
    """The verdict, the command that serves, and where the details are."""
    if calibration.verdict == "pass":
        # The notes are counted above.
        words = re.sub(r" · [\d,]+ warnings?", "", rows.verdict_of(calibration))
        verdict = f"PASS{took}{words.removeprefix('pass')}."
        command = f"Serve:  {text.printable(serve)}"
        kept = (c for c in calibration.checks if c.code == DETAIL_KEPT.code and c.status == "warn")
        shrunk = next(kept, None)
        if shrunk is None and len(f"{verdict} {command}") <= width:
            command = f"{verdict} {command}"
        else:
            yield from _wrapped(verdict, "", 2, width)
        if shrunk is not None:
            yield from _wrapped(f"→ {shrunk.remedies[0]}", "  ", 2, width)
        yield Text(command, "bold")
    files = ", ".join([os.path.join(folder, "report.html"), *also])
    issue = f"Details: {files} · to report an issue: mmcalib report {folder} --format issue"
    yield Text(text.printable(issue if folder and len(issue) <= width else f"Details: {files}"))
