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
# A container as compose, swarm, pm2 and honcho name it (`web-1  | `), or kubectl.
_CONTAINER = re.compile(r"(?:[\d:.]{1,20}[ |])?[A-Za-z][\w.@-]* +\| |\[pod/[\w./:-]+\] ")
# What others put before vLLM's own prefix, and the names in it: of a pod, a unit or a host, but not
# of a month, a day, a level or a stream.
_BEFORE = re.compile(r"[\w\s.:/@|›>\[\],+-]{0,200}")
_NAME = re.compile(r"(?<![\w./@+-])[A-Za-z][\w./@-]{1,100}")
_NO_NAME = re.compile(r"[A-Z][a-z]{2}|[A-Z]+|std(?:out|err)|debug|info|warn(?:ing)?|error")
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
    """`source`: pod, unit or host; `process`: the innermost in the prefix; `ahead`: later texts."""

    number: int
    text: str
    source: str
    process: str | None
    level: str | None
    ahead: tuple[str, ...] = ()


# Fields of Docker, Cloud Logging, CloudWatch, journald, Loki and vLLM's own JSON, wherever they
# stand: a record may be spread over lines, cut short, or one of many in a line.
_FIELD = re.compile(
    r'(?:"(?:log|message|line|msg|textPayload|@message|MESSAGE|body)"\s{0,9}:|\[\s{0,9}"\d{1,25}",)'
    r'\s{0,9}("(?:[^"\\]|\\.)*")'
)
# Their labels that tell servers apart; in a message, quotes are escaped.
_LABEL = re.compile(
    r'(?i)"(?:\w{1,40}\.){0,5}[@_]?(?:pod|container|host|(?:systemd_)?unit|instance|log_?stream)'
    r'(?:[._]?(?:name|id))?"\s{0,9}:\s{0,9}"([\w./:-]{1,100})"'
)
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
    """Return lines of each record in JSON or CSV, labelled as kubectl does; any other unchanged."""
    inner, source = list[str](), ""
    with contextlib.suppress(ValueError, csv.Error):
        if text.lstrip("[ \t").startswith(("{", '"')) and (fields := _FIELD.findall(text)):
            inner = [json.loads(one) for one in fields]
            labels = "/".join(_LABEL.findall(text))[:200]
            source = labels and f"[pod/{labels}] "
        elif _ROW.match(text):
            inner = [max(next(csv.reader([text], strict=True)), key=len)]
    return [[source + line for line in _split(one)] for one in inner or [text]]


def _split(text: str) -> Iterator[str]:
    """Split lines that were joined, as several heads in one line show."""
    for line in text.splitlines():
        joined = len(_HEAD.findall(line)) > 1
        begins = [match.start() for match in _BEGINNING.finditer(line)] if joined else []
        for begin, end in itertools.pairwise([0, *begins[1:], len(line)]):
            yield line[begin:end]


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
        if last < width - 1 or any(one.match(line) for one in (_HEAD, _PROCESS, _CONTAINER)):
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
        waiting.append(_line(number, text, waiting[-1].source if waiting else ""))
        if len(waiting) > _AHEAD:
            yield _with_ahead(waiting)
    while waiting:
        yield _with_ahead(waiting)


def _with_ahead(waiting: deque[Line]) -> Line:
    line = waiting.popleft()
    return replace(line, ahead=tuple(one.text for one in waiting if one.source == line.source))


def _line(number: int, raw: str, last: str) -> Line:
    """Parse one line; one that names no source is of the `last` line's."""
    front = raw[:_FRONT_CHARS]
    container, head = _CONTAINER.match(front), _HEAD.search(front)
    processes = list(_PROCESS.finditer(front[: head.start()] if head else front))
    prefix = head or (processes[-1] if processes else container)
    first = container or (processes[0] if processes else head)
    begin = 0 if first is None else first.end() if container else first.start()
    names = (one for one in _NAME.findall(front[:begin]) if not _NO_NAME.fullmatch(one))
    return Line(
        number=number,
        text=raw[prefix.end() if prefix else 0 :].strip(),
        source=" ".join(names) if first and _BEFORE.fullmatch(front, 0, begin) else last,
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
    with contextlib.suppress(ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        value: Value = ast.literal_eval(text)
        written = json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
        if json.loads(written, parse_int=_number, parse_float=_number) == value:
            return value, True
    return text, False


def _number(text: str) -> Any:
    """Return a number of JSON. Raises ValueError for one that no setting has."""
    if abs(number := ast.literal_eval(text)) >= _NUMBER_BELOW:
        raise ValueError
    return number
