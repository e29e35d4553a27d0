"""Words of a configuration: their places in the text, and what in them cannot be known."""

from __future__ import annotations

import json
import re
import shlex
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, Literal

import yaml

from mmcalib.results.engine_yaml import serve_option, yaml_entry
from mmcalib.text import one_line

Form = Literal["entry", "item", "list", "shell", "field"]
# Text before an option that is removed together with it.
BEFORE: Final[Mapping[Form, str]] = {
    "entry": r"\n[^\n]*\Z",
    "item": r"\n\s*-\s*\Z",
    "list": r",\s*\Z",
    "shell": r"\s*(\\\n)?\s*\Z",
    "field": r"\n\s*\w+:\s*\Z",
}
# A reason stands in the text itself, without spaces, so that it goes wherever a shell or a manifest
# puts the value of a variable. Unicode keeps these characters free.
_BEGIN, _SPACE, _END = "\ufdd0", "\ufdd1", "\ufdd2"
_REASON: Final = re.compile(f"{_BEGIN}([^{_BEGIN}{_END}]*){_END}")


@dataclass(frozen=True, slots=True)
class Span:
    """A word, or an option (named by its argument) with its values, and its place in the text.

    The place is -1 if the text spells the word differently. `glue` separates words; `quote` is
    YAML's quote around them.
    """

    text: str
    start: int = -1
    end: int = -1
    line: int = 0
    form: Form = "shell"
    glue: str = " "
    quote: str = "|"

    def spell(self, name: str, value: Any) -> str:
        """Spell an option the way this place requires."""
        if self.form == "field":
            return json.dumps(value)
        if self.form == "entry":
            return yaml_entry(name, value).rstrip("\n")
        words = serve_option(name, value)
        if self.form != "shell":
            return self.glue.join(map(_yaml_word, words))
        if not self.quote:
            # A colon before a space would end a plain scalar.
            dumps = partial(json.dumps, separators=(",", ":"))
            words = [w if w[0] not in "[{" else dumps(json.loads(w)) for w in words]
        line = shlex.join(words)
        return {"'": line.replace("'", "''"), '"': json.dumps(line)[1:-1]}.get(self.quote, line)

    def make_addition(self, text: str, more: Mapping[str, Any]) -> tuple[int, int, str]:
        """Return the edit (start, end, text) that adds these options after this one."""
        line_ends = text.find("\n", self.end) if self.form in ("entry", "item", "field") else -1
        at = self.end if self.form in ("list", "shell") else len(text)
        at = at if line_ends < 0 else line_ends
        if self.form == "field":
            words = [word for name, value in more.items() for word in serve_option(name, value)]
            indent = re.search(r" *(?=[^\n ][^\n]*\Z)", text[: self.start])
            listed = ", ".join(map(_yaml_word, words))
            return at, at, f"\n{indent[0] if indent else ''}extraArgs: [{listed}]"
        return at, at, "".join(self.glue + self.spell(*option) for option in more.items())


def _yaml_word(word: str) -> str:
    return yaml.safe_dump([word], default_flow_style=True, width=1 << 20, allow_unicode=True)[1:-2]


def option_spans(words: Sequence[Span]) -> Iterator[Span]:
    """Join each option and its values."""
    at = 0
    while at < len(words):
        first = last = words[at]
        at += 1
        while at < len(words) and not words[at].text.startswith("-"):
            last = words[at]
            at += 1
        name = argument(first.text) if first.text.startswith("-") else ""
        yield replace(first, text=name, end=last.end)


def argument(option: str) -> str:
    """Return the argument that an option sets, by its spelling: `--a-b.c=1` sets a_b."""
    return option.lstrip("-").partition("=")[0].partition(".")[0].replace("-", "_")


def mark_unknown(what: str, why: str) -> str:
    """Return what stands in a word for a value that is unknown for this reason."""
    reason = f"{textwrap.shorten(what, 60, placeholder=' …')} {why}"
    return f"{_BEGIN}{without_marks(reason).replace(' ', _SPACE)}{_END}"


def without_marks(text: str, unknown: str = "") -> str:
    return _REASON.sub(unknown, text)


def keep_known(words: Sequence[Span]) -> tuple[list[Span], list[str]]:
    """Separate words that are known from notes about the others.

    An option whose value is unknown is left out with it.
    """
    kept, notes, is_left_out = list[Span](), list[str](), False
    for word in words:
        is_option = word.text.startswith("-")
        if unknown := [why.replace(_SPACE, " ") for why in _REASON.findall(word.text)]:
            is_left_out = bool(kept) and kept[-1].text.startswith("-") and not is_option
            what = kept.pop().text if is_left_out else without_marks(word.text).partition("=")[0]
            what = what if is_left_out or is_option else "another word" if kept else "the model"
            notes.append(f"line {word.line}: {what} is left out: {one_line(', '.join(unknown))}")
        elif is_option or not is_left_out:
            is_left_out = False
            kept.append(word)
    return kept, notes
