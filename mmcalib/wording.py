"""Foreign text (paths, library messages) made fit for one line, and the words for what is not
there to be read.
"""

from __future__ import annotations

LINE_CHARS = 200

# Why bytes could not be had, which says nothing of them and may pass.
NO_FILE = "no such file any more"
NO_PERMISSION = "no permission to read it"
NO_ANSWER = "no answer in time"
NO_ACCESS = "cannot be read: "
PASSING = (NO_FILE, NO_PERMISSION, NO_ANSWER, NO_ACCESS)


def plain(text: str) -> str:
    """`text` with line breaks, control characters and those that turn it around as escapes."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def first_sentence(text: str) -> str:
    """`text` up to the end of its first sentence, without the full stop."""
    return text.partition(". ")[0]


def one_line(text: str) -> str:
    """`text` with every run of whitespace and control characters as one space, cut to 200."""
    printable = "".join(char if char.isprintable() else " " for char in text)
    line = " ".join(printable.split())
    return line if len(line) <= LINE_CHARS else line[: LINE_CHARS - 1] + "…"
