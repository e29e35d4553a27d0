"""The results as a page: who agreed with the server, and each time that somebody did not."""

from __future__ import annotations

import json
import re
import tomllib
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pages

from judging.request import Request, summary
from judging.results import Result
from judging.verdict import KINDS, Verdict

HERE = Path(__file__).parent
# One in a hundred of the requests may be refused by `check` alone.
MOST_FALSE_REFUSALS = 0.01
_MOST_LINES, _MOST_CHARS = 6, 160
_FOLDER = re.compile(r"/tmp/[^ ]*/")
_USUAL = ("file", "data", "input_audio")


@dataclass(frozen=True, slots=True)
class Asked:
    """One request with its verdict; `after` says how many came before it in its order."""

    subject: str
    request: Request
    verdict: Verdict
    after: int

    @property
    def summary(self) -> str:
        return summary(self.request)

    @property
    def medium(self) -> str:
        """What is odd in it, or else the modality, `mixed`, or `text`."""
        one = self.request
        odd: dict[str, object] = {"fields": one.fields or one.extra, "messages": one.before}
        odd |= {"tools": one.choice}
        odd |= {"parts": any(turn.parts for turn in one.turns)}
        odd |= {"marks in texts": any(turn.mark for turn in one.turns)}
        odd |= {"URLs": any(item.via not in _USUAL for item in one.items)}
        if (what := next((name for name, is_so in odd.items() if is_so), None)) is not None:
            return what
        kinds = {item.medium.split("-")[0].split(".")[0] for item in one.items}
        return "mixed" if len(kinds) > 1 else next(iter(kinds), "text")


def asked(results: Iterable[Result]) -> Iterator[Asked]:
    for result in results:
        for after, (request, verdict) in enumerate(zip(result.order, result.verdicts, strict=True)):
            yield Asked(result.subject, request, verdict, after)


def passes(rows: Sequence[Asked]) -> bool:
    """Nothing let in was refused, nothing failed, and `check` refused hardly anything by itself."""
    kinds = Counter(row.verdict.kind for row in rows)
    few = kinds["false refusal"] <= MOST_FALSE_REFUSALS * len(rows)
    broken = kinds["broken promise"] + kinds["failure"] + kinds["wrong count"]
    return bool(rows) and not broken and few


def page(
    rows: Sequence[Asked],
    made: Mapping[str, object],
    notes: Sequence[str],
    died: Sequence[str],
    fields: Collection[str],
) -> str:
    """Write Markdown: `made` says with what, `notes` are on the models, `died` what became of
    servers, and `fields` are those of vLLM's schema.
    """
    kinds = Counter(row.verdict.kind for row in rows)
    matrix: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for row in rows:
        matrix[row.subject, row.medium][row.verdict.kind] += 1
    bodies = (json.loads(row.request.fields or "{}") for row in rows)
    of_fields = Counter(name for body in bodies for name in body)
    unknown = [row for row in rows if row.verdict.kind == "unknown"]
    return pages.page(
        HERE / "page.md.j2",
        {"plain": _plain},
        rows=rows,
        made=made,
        notes=notes,
        died=died,
        fields=fields,
        kinds=kinds,
        kinds_of_all=KINDS,
        let_in=kinds["served"] + kinds["served again"] + kinds["broken promise"],
        share=lambda kind: f"{kinds[kind] / max(1, len(rows)):.1%}",
        matrix=matrix,
        least=min((of_fields[name] for name in fields), default=0),
        more=len(of_fields.keys() - set(fields)),
        sent=", ".join(f"{len(set(names))} {what}" for what, names in _sent(rows).items()),
        most=_MOST_LINES,
        sections=[
            ("Disagreements", list(_groups([r for r in rows if r.verdict.disagrees]))),
            ("Unknown, by what `check` says", list(_groups(unknown))),
        ],
    )


def _sent(rows: Sequence[Asked]) -> dict[str, Iterable[str]]:
    turns = [turn for row in rows for turn in row.request.turns]
    return {
        "kinds of parts": (name for turn in turns for name in turn.parts),
        "kinds of messages": (row.request.before for row in rows if row.request.before),
        "ways to send tools": (row.request.choice for row in rows if row.request.choice),
        "marks in texts": (turn.mark for turn in turns if turn.mark),
        "media": (item.medium for turn in turns for item in turn.items),
        "ways to name a medium": (item.via for turn in turns for item in turn.items),
    }


def _groups(rows: Sequence[Asked]) -> Iterator[tuple[str, list[Asked], str]]:
    """Each cause with its requests, the shortest first, and the reason why it stays."""
    reasons = tomllib.loads((HERE / "reasons.toml").read_text("utf-8"))["reason"]
    groups: dict[str, list[Asked]] = defaultdict(list)
    for row in rows:
        groups[row.verdict.cause].append(row)
    for cause, found in sorted(groups.items(), key=lambda pair: -len(pair[1])):
        why = next((one["why"] for one in reasons if re.search(one["pattern"], cause)), "")
        yield cause, sorted(found, key=lambda row: len(row.summary)), why


def _plain(words: str) -> str:
    """On one line and not too long, with nothing that Markdown would take for its own."""
    line = _FOLDER.sub("", " ".join(words.split()))
    line = line.replace("|", "\\|").replace("`", "'").replace("<", "\\<")
    return line if len(line) <= _MOST_CHARS else line[:_MOST_CHARS] + "…"
