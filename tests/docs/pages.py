"""README and docs as text: their fenced blocks, commands, links and headings."""

import re
import shlex
from collections.abc import Iterator

from ..schemas import ROOT

PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *ROOT.glob("datasets/*.md"),
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("reports/*.md"),
    ]
)
TEXTS = {str(page.relative_to(ROOT)): page.read_text(encoding="utf-8") for page in PAGES}
_FENCE = re.compile(r"^```(?P<kind>\w*)\n(?P<content>.*?)^```$", re.S | re.M)
_CODE = re.compile(r"`[^`\n]*`")
_LINK = re.compile(r"\[[^\]]+\]\((?P<target>[^)\s]+)\)")
_HEADING = re.compile(r"^#+ (?P<words>.+?)\s*$", re.M)
_TAG = re.compile(r"\b(?:src|srcset|href|id)=\"(?P<target>[^\"]+)\"")


def fenced(kind: str) -> Iterator[tuple[str, str]]:
    """Every fenced block of a kind: (page, content)."""
    for page, text in TEXTS.items():
        for found in _FENCE.finditer(text):
            if found["kind"] == kind:
                yield page, found["content"]


def command_lines() -> list[tuple[str, str]]:
    """Every command of the bash blocks, its continued lines as one: (page, line)."""
    return [
        (page, line)
        for page, content in fenced("bash")
        for line in _joined(content)
        if line.strip() and not line.lstrip().startswith("#")
    ]


def _joined(content: str) -> Iterator[str]:
    """A line ends where no backslash goes on and no quote is open."""
    waiting = ""
    for line in content.splitlines():
        waiting += line
        if waiting.endswith("\\"):
            waiting = waiting[:-1]
            continue
        try:
            shlex.split(waiting, comments=True)
        except ValueError:
            waiting += "\n"
            continue
        yield waiting
        waiting = ""
    assert not waiting, waiting


def programs(line: str) -> list[list[str]]:
    """The words of each command of a pipeline, without comments and redirections."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|>;&")
    lexer.whitespace_split = True
    found: list[list[str]] = [[]]
    for word in lexer:
        if word in ("|", "&&", ";"):
            found.append([])
        else:
            found[-1].append(word)
    return [words[: words.index(">")] if ">" in words else words for words in found]


def links(page: str) -> list[str]:
    """The targets of a page's links and pictures, not those that code only shows."""
    text = _CODE.sub("code", _FENCE.sub("", TEXTS[page]))
    return [
        *(found["target"] for found in _LINK.finditer(text)),
        *(found["target"] for found in _TAG.finditer(text)),
    ]


def anchors(text: str) -> set[str]:
    """The names that GitHub gives to headings; a second one of the same words gets a number."""
    found: set[str] = set()
    for heading in _HEADING.finditer(_FENCE.sub("", text)):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading["words"])
        name = re.sub(r"[^\w\- ]", "", words.lower()).replace(" ", "-")
        number = 0
        while (again := f"{name}-{number}" if number else name) in found:
            number += 1
        found.add(again)
    return found
