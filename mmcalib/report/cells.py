"""Foreign text in Markdown."""

from __future__ import annotations

from mmcalib import wording


def cell(value: object) -> str:
    """Text that neither ends its table cell nor becomes markup."""
    text = wording.plain(str(value))
    for special in "\\`*_[]<>|&$~":
        text = text.replace(special, f"\\{special}")
    return text
