"""Lines of a server's log, without what loggers, terminals, containers and pages add; arguments."""

from __future__ import annotations

import ast
import contextlib
import csv
import html
import itertools
import json
import operator
import re
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

Value = bool | int | float | str | list[object] | dict[object, object] | None

# A configuration is about 6,000 characters; a much longer text is something else.
_MOST_CHARS: Final = 100_000
# Lines to join if a terminal or an issue tracker wrapped a message.
_AHEAD: Final = 8
# Characters to search for process and head: the rest of a line can be a whole configuration.
_FRONT_CHARS: Final = 400
_COLOUR = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|ESC\[[0-9;]*m")
# The container of compose (`web-1  | `) and of kubectl (`[pod/name/container] `).
_SOURCE = re.compile(
    r"(?!(?:DEBUG|INFO|WARNING|ERROR|CRITICAL)\b)([A-Za-z][\w.-]{0,100}) {1,40}\| |"
    r"\[(pod/[\w./-]{1,200})\] "
)
# `(EngineCore_0 pid=72)`, `(VllmWorker rank=1 pid=12)`, `(Worker_TP0 pid=7286)`,
# `(RayWorkerWrapper pid=1463574, ip=10.0.0.60)`; nested ones follow each other.
_PROCESS = re.compile(r"\(([A-Za-z][\w.]{0,60}(?: rank=\d{1,6})? pid=\d{1,12}[^()]{0,60})\) ?")
# `INFO 09-23 18:12:33 [gpu_worker.py:298] `; with DEBUG the path in the package.
_HEAD = re.compile(
    r"\b(DEBUG|INFO|WARNING|ERROR|CRITICAL) ((?:\d{4}-)?\d\d-\d\d \d\d:\d\d:\d\d)(?:[.,]\d{1,9})? "
    r"(?:\[?[\w./]{1,200}\.py:\d{1,6}\] ?)?"
)
# Where a line begins: pages join the lines of what is pasted as text.
_BEGINNING = re.compile(rf"(?:{_PROCESS.pattern}){{1,4}}(?:{_HEAD.pattern})?|{_HEAD.pattern}")
# What pages and word processors make of quotes and blanks.
_ENTITY = re.compile(r"&(?:#\d{1,6}|#x[0-9a-fA-F]{1,5}|quot|apos|lt|gt|amp|nbsp);")
_TYPOGRAPHY: Final = str.maketrans(
    {**dict.fromkeys("‘’‚‛′", "'"), **dict.fromkeys("“”„‟″", '"')}
    | {**dict.fromkeys("\xa0\u2007\u202f", " "), **dict.fromkeys("\u200b\ufeff\x00", "")}
)


@dataclass(frozen=True, slots=True)
class Line:
    """`process` is the innermost in the prefix; `ahead` are the texts of the next lines."""

    number: int
    text: str
    source: str
    process: str | None
    level: str | None
    ahead: tuple[str, ...] = ()


# Keys under which collectors store a line: Docker, Cloud Logging, Loki, CloudWatch, journald, and
# vLLM's own JSON formatter. One JSON line may be spread over several.
_MESSAGES: Final = ("log", "message", "line", "msg", "textPayload", "@message", "MESSAGE", "body")
_FIELD = re.compile(rf'\s*"(?:{"|".join(_MESSAGES)})"\s*:\s*(".*"),?\s*')
_DEEPEST: Final = 6
# A row whose first cells are short and unquoted, up to a quoted one.
_ROW = re.compile(r'(?:[^",()]{0,80},){0,8}"')
# Lines that determine a terminal's width: none is longer, several as long (or one, if usual).
_WIDTH_LINES: Final = 500
_WIDTHS: Final = range(60, 401)
_USUAL_WIDTHS: Final = (80, 100, 120, 132, 160)
_LEAST_FULL: Final = 3
# Processes print in the same second: an export is newest first if its times fall more often.
_JITTER: Final = 4


def _unpack(text: str) -> list[list[str]]:
    """Return the lines of each record inside a line of JSON or CSV; any other unchanged."""
    inner: list[str] = []
    with contextlib.suppress(ValueError, RecursionError, csv.Error):
        if text.lstrip()[:1] in ("{", "["):
            inner = list(_messages(json.loads(text)))
        elif field := _FIELD.fullmatch(text):
            inner = [json.loads(field[1])]
        elif _ROW.match(text):
            inner = [max(next(csv.reader([text], strict=True)), key=len)]
    return [list(itertools.chain(*map(_split, one.splitlines()))) for one in inner or [text]]


def _split(text: str) -> Iterator[str]:
    """Split lines that were joined, as several heads in one line show."""
    joined = len(_HEAD.findall(text)) > 1
    begins = [match.start() for match in _BEGINNING.finditer(text)] if joined else []
    for begin, end in itertools.pairwise([0, *begins[1:], len(text)]):
        yield text[begin:end]


def _messages(record: object, deepest: int = _DEEPEST) -> Iterator[str]:
    match record:
        case [str(moment), str(line)] if moment.isdigit():
            yield line
        case dict() | list() if deepest:
            fields = record if isinstance(record, dict) else {}
            texts = (fields[name] for name in _MESSAGES if isinstance(fields.get(name), str))
            if (message := next(texts, None)) is not None:
                yield message
                return
            for value in fields.values() if fields else record:
                yield from _messages(value, deepest - 1)


def _plain(text: str) -> str:
    """Undo the entities of a page, typographic quotes, and blanks that do not break."""
    text = html.unescape(text) if _ENTITY.search(text) else text
    return (text if text.isascii() else text.translate(_TYPOGRAPHY)).rstrip()


def _oldest_first(records: Iterator[tuple[int, list[str]]]) -> Iterable[tuple[int, list[str]]]:
    """Turn around an export whose newest record comes first, as the times of its lines show."""
    first = list(itertools.islice(records, _WIDTH_LINES))
    heads = (_HEAD.search(line[:_FRONT_CHARS]) for _, lines in first for line in lines[:1])
    times = list(itertools.pairwise(head[2] for head in heads if head))
    falls, rises = (sum(compare(*two) for two in times) for compare in (operator.gt, operator.lt))
    every = itertools.chain(first, records)
    return reversed(list(every)) if falls > 1 + _JITTER * rises else every


def _unwrap(raw: Iterable[str]) -> Iterator[tuple[int, str]]:
    """Join lines that a terminal broke at its width, even within a word; with their numbers."""
    records = (
        (number, record)
        for number, text in enumerate(raw, 1)
        for record in _unpack(_COLOUR.sub("", text))
    )
    lines = ((number, _plain(line)) for number, record in _oldest_first(records) for line in record)
    first = list(itertools.islice(lines, _WIDTH_LINES))
    width = max((len(line) for _, line in first), default=0)
    full = sum(len(line) == width for _, line in first)
    least = 1 if width in _USUAL_WIDTHS else max(_LEAST_FULL, len(first) // 20)
    if width not in _WIDTHS or full < least:
        yield from itertools.chain(first, lines)
        return
    whole, begun, last = "", 1, 0
    for number, line in itertools.chain(first, lines):
        # Copying drops a blank at the break.
        if last < width - 1 or _HEAD.match(line) or _PROCESS.match(line):
            yield begun, whole
            whole, begun = line, number
        else:
            whole += line if last == width else f" {line}"
        last = len(line)
        if len(whole) > _MOST_CHARS:
            last = 0
    yield begun, whole


def read_lines(raw: Iterable[str]) -> Iterator[Line]:
    waiting: deque[Line] = deque()
    for number, text in _unwrap(raw):
        waiting.append(_line(number, text))
        if len(waiting) > _AHEAD:
            yield _with_ahead(waiting)
    while waiting:
        yield _with_ahead(waiting)


def _with_ahead(waiting: deque[Line]) -> Line:
    line = waiting.popleft()
    return replace(line, ahead=tuple(one.text for one in waiting if one.source == line.source))


def _line(number: int, raw: str) -> Line:
    source = _SOURCE.match(raw)
    clean = raw[source.end() if source else 0 :]
    front = clean[:_FRONT_CHARS]
    head = _HEAD.search(front)
    processes = list(_PROCESS.finditer(front[: head.start()] if head else front))
    prefix = head or (processes[-1] if processes else None)
    return Line(
        number=number,
        text=clean[prefix.end() if prefix else 0 :].strip(),
        source=(source[1] or source[2]) if source else "",
        process=processes[-1].group(1) if processes else None,
        level=head.group(1) if head else None,
    )


# Arguments that the user set.

# Bytes and tokens are far below this.
_NUMBER_BELOW: Final = 2**63
_OPEN, _CLOSE = "([{<", ")]}>"
# A bracket, a comma, or a quoted text, which may be cut short.
_TOKEN = re.compile(r"""'(?:[^'\\]|\\.)*(?:'|\\?$)|"(?:[^"\\]|\\.)*(?:"|\\?$)|[\[\](){}<>,]""")
NON_DEFAULT: Final = "non-default args: {"
# Quoted logs have "..." for omitted parts.
_KEY = re.compile(r"\s*(?:\.{3}\s*)?'([A-Za-z_]\w{0,60})'\s*:\s*")


def read_arguments(text: str) -> Iterator[tuple[str, Value, bool]]:
    """Parse "non-default args: {...}": yield name, value, and whether that is a literal."""
    _, _, body = text.partition(NON_DEFAULT)
    for part in _parts(body[:_MOST_CHARS]):
        if key := _KEY.match(part):
            yield key.group(1), *_value(part[key.end() :].strip())


def _parts(text: str) -> Iterator[str]:
    """Split at the outermost commas, up to the closing brace."""
    depth = start = 0
    for token in _TOKEN.finditer(text):
        if depth == 0 and token[0] in (",", "}"):
            yield text[start : token.start()]
            start = token.end()
            if token[0] == "}":
                return
        depth = max(0, depth + (token[0] in _OPEN) - (token[0] in _CLOSE))
    yield text[start:]


def _value(text: str) -> tuple[Value, bool]:
    """Parse a literal that JSON can represent; any other text stays text, and is none."""
    try:
        value: Value = ast.literal_eval(text)
        written = json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
        is_json = json.loads(written, parse_int=_number, parse_float=_number) == value
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError, OverflowError):
        return text, False
    return (value, True) if is_json else (text, False)


def _number(text: str) -> Any:
    """Return a number of JSON. Raises OverflowError for one that no setting has."""
    if abs(number := ast.literal_eval(text)) >= _NUMBER_BELOW:
        raise OverflowError
    return number
