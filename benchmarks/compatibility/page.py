"""The page of all releases."""

from __future__ import annotations

import re
from collections.abc import Sequence

from compatibility.commands import GPU, MODEL
from compatibility.rows import Cell, Row

_HEAD = f"""# vLLM, release by release

Written by `make compat`: in an environment per release, what vLLM can be asked for,
each command over the sample corpus with {MODEL} and `--gpu {GPU}`
(`run` for a context of 32,768 tokens), and the project's own tests of what faces vLLM.
No GPU was there: an engine starts where the release has a CPU build.

A cell says what became of it: *works*, *pass*, or how many tests pass; a number in brackets is the
reason below for what does not hold with that release. *fail* is a verdict, with exit code 3;
*error* would be an end without one; — was not tried there yet.
"""
_PLAIN = re.compile(r"works|(\d+ )?pass")


def page(rows: Sequence[Row]) -> str:
    """The table, and a note for each reason."""
    notes: list[str] = []

    def shown(cell: Cell | None) -> str:
        if cell is None:
            return "—"
        if not cell.why and _PLAIN.fullmatch(cell.state):
            return cell.state
        if cell.why not in notes:
            notes.append(cell.why)
        return f"{cell.state} [{notes.index(cell.why) + 1}]"

    names = list(dict.fromkeys(name for row in rows for name in row.cells))
    head = ["", *(row.vllm for row in rows)]
    body = [
        ["package", *(row.package for row in rows)],
        ["torch", *(row.torch for row in rows)],
        ["transformers", *(row.transformers for row in rows)],
        *([name, *(shown(row.cells.get(name)) for row in rows)] for name in names),
    ]
    lines = ["| " + " | ".join(cells) + " |" for cells in body]
    rule = "|" + "---|" * len(head)
    said = [f"{number}. {why}" for number, why in enumerate(notes, start=1)]
    return "\n".join([_HEAD, "| " + " | ".join(head) + " |", rule, *lines, "", *said, ""])
