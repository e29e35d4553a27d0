"""The results as a page: who agreed with the server, and each time that somebody did not."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from judging.explained import AGAIN, explained
from judging.request import Request, summary
from judging.results import Result
from judging.verdict import KINDS, Verdict

# The issue's own: one in a hundred of the requests may be refused by `check` alone.
MOST_FALSE_REFUSALS = 0.01
_MOST_LINES = 6
_FOLDER = re.compile(r"/tmp/[^ ]*/")
_USUAL = ("file", "data", "input_audio")
_WORDS = 160


@dataclass(frozen=True, slots=True)
class Asked:
    """One request with its verdict; `after` says how many came before it in its order."""

    subject: str
    request: Request
    verdict: Verdict
    after: int

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
    rows: Sequence[Asked], about: Sequence[str], died: Sequence[str], fields: Collection[str]
) -> str:
    """Markdown. `about` says how it was made, `died` what became of servers; `fields` are those of
    vLLM's schema.
    """
    kinds = Counter(row.verdict.kind for row in rows)
    let_in = kinds["served"] + kinds["served again"] + kinds["broken promise"]
    share = kinds["false refusal"] / max(1, len(rows))
    lines = [
        "# What `check` says and what vLLM's server does",
        "",
        *about,
        "",
        f"**{len(rows):,} requests: {let_in:,} let in, of which the server refused "
        f"{kinds['broken promise']} and served {kinds['served again']} at the second attempt; "
        f"{kinds['failure']} answered by 5xx or not at all that it did not refuse; "
        f"{kinds['false refusal']} false refusals ({share:.1%}); {kinds['unknown']} unknown "
        f"({kinds['unknown'] / max(1, len(rows)):.1%}).**",
        "",
        "*served*, *refused*: both agree, though the server refuses some *by 5xx*. *unknown*: "
        "`check` says that it does not know. *served again*: below. *broken promise*: `check` lets "
        "in what the server refuses. *failure*: the server answers 5xx to what `check` did not "
        "refuse, or does not answer. *wrong count*: the prompt exceeds the bound of `check`, or "
        "differs from its exact count. *false refusal*: the server takes what `check` refuses. "
        "Every count is measured.",
        "",
        *_matrix(rows),
        "",
        *_coverage(rows, fields),
    ]
    if kinds["served again"]:
        lines += ["", AGAIN]
    lines += _groups("Disagreements", [r for r in rows if r.verdict.disagrees])
    unknown = [r for r in rows if r.verdict.kind == "unknown"]
    lines += _groups("Unknown, by what `check` says", unknown)
    if died:
        lines += ["", "## Servers that died", "", *[f"```\n{one}\n```" for one in died]]
    return "\n".join(lines) + "\n"


def _coverage(rows: Sequence[Asked], fields: Collection[str]) -> Iterator[str]:
    """How often each field, part, message and way of naming a medium was sent."""
    turns = [turn for row in rows for turn in row.request.turns]
    sent: dict[str, Iterable[str]] = {
        "kinds of parts": (name for turn in turns for name in turn.parts),
        "kinds of messages": (row.request.before for row in rows if row.request.before),
        "ways to send tools": (row.request.choice for row in rows if row.request.choice),
        "marks in texts": (turn.mark for turn in turns if turn.mark),
        "media": (item.medium for turn in turns for item in turn.items),
        "ways to name a medium": (item.via for turn in turns for item in turn.items),
    }
    bodies = (json.loads(row.request.fields or "{}") for row in rows)
    of_fields = Counter(name for body in bodies for name in body)
    least = min((of_fields[name] for name in fields), default=0)
    rest = ", ".join(f"{len(set(names))} {what}" for what, names in sent.items())
    yield (
        f"Each of the {len(fields)} fields of vLLM's schema was sent at least {least} times, with "
        f"values of every type; and {len(of_fields.keys() - set(fields))} fields that it lacks, "
        f"{rest}."
    )


def _matrix(rows: Sequence[Asked]) -> Iterator[str]:
    yield f"| model | medium | requests | {' | '.join(KINDS)} |"
    yield "|---|---|--:" + "|--:" * len(KINDS) + "|"
    counts: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for row in rows:
        counts[row.subject, row.medium][row.verdict.kind] += 1
    for (subject, medium), found in counts.items():
        cells = " | ".join(str(found[kind]) for kind in KINDS)
        yield f"| {subject} | {medium} | {found.total()} | {cells} |"


def _groups(title: str, rows: Sequence[Asked]) -> Iterator[str]:
    yield from ("", f"## {title}", "")
    if not rows:
        yield "None."
    groups: dict[str, list[Asked]] = defaultdict(list)
    for row in rows:
        groups[row.verdict.cause].append(row)
    for cause, found in sorted(groups.items(), key=lambda pair: -len(pair[1])):
        yield f"### {len(found)} × {_plain(cause)}"
        yield ""
        if why := explained(cause):
            yield from (why, "")
        shown = sorted(found, key=lambda row: len(summary(row.request)))[:_MOST_LINES]
        for row in shown:
            verdict = row.verdict
            then = f" (request {row.after + 1} of its order)" if row.after else ""
            yield (
                f"- {row.subject}: `{_plain(summary(row.request))}`{then}: check: "
                f"{verdict.answer}, {_plain(verdict.reason)}; server: {verdict.status} "
                f"{_plain(verdict.said)}"
            )
        if len(shown) < len(found):
            yield f"- and {len(found) - len(shown)} more"
        yield ""


def _plain(words: str) -> str:
    """On one line and not too long, with nothing that Markdown would take for its own."""
    line = (
        _FOLDER.sub("", " ".join(words.split()))
        .replace("|", "\\|")
        .replace("`", "'")
        .replace("<", "\\<")
    )
    return line if len(line) <= _WORDS else line[:_WORDS] + "…"
