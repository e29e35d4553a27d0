"""Foreign text (paths, library messages) made fit for one line."""

from __future__ import annotations

LINE_CHARS = 200


def one_line(text: str) -> str:
    """`text` with every run of whitespace and control characters as one space, cut to 200."""
    printable = "".join(char if char.isprintable() else " " for char in text)
    line = " ".join(printable.split())
    return line if len(line) <= LINE_CHARS else line[: LINE_CHARS - 1] + "…"
