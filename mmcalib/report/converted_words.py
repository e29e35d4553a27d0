"""What `mmcalib requests` says of the file that it wrote."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from mmcalib.result.converted import ConvertedRequests
from mmcalib.wording import number, plain


def converted_lines(found: ConvertedRequests) -> Iterator[str]:
    """What was read and left out, what the file says, and what to do with it."""
    parts = [f"{number(found.requests)} requests of {number(found.entries)} entries"]
    parts += [f"{number(count)} {modality} items" for modality, count in found.items.items()]
    parts += [f"{number(found.others)} entries are no requests"] if found.others else []
    parts += [f"{number(found.skipped)} requests skipped"] if found.skipped else []
    yield ", ".join(parts)
    for one in found.left_out:
        yield plain(f"   {number(one.requests)} skipped: {one.reason} (first: {one.first})")
    yield f"sent when: {number(found.timed)} say it; answer's length: {number(found.answers)}"
    if found.redacted:
        yield "redacted: words are filler of as many bytes, media are blanks of the same shape"
    name = shlex.quote(plain(found.written))
    yield f"written to {name}; next: mmcalib scan --requests {name} --out out"
