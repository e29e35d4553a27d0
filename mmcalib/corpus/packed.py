"""Whether a file of lines was packed: its lines can be counted only once it is unpacked."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Final

from mmcalib.errors import CorpusError
from mmcalib.wording import one_line

# What such files begin with, and the command of that name that unpacks them.
_MAGIC: Final = {
    b"\x1f\x8b": "gzip",
    b"BZh": "bzip2",
    b"\xfd7zXZ": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
}


def refuse_packed(path: Path, head: bytes) -> None:
    """Raises CorpusError for a file that begins as packed ones do."""
    for magic, command in _MAGIC.items():
        if head.startswith(magic):
            raise CorpusError(
                f"{one_line(str(path))} is packed by {command}: unpack it first",
                hint=f"{command} -dc {shlex.quote(str(path))} > {shlex.quote(_unpacked(path))}",
            )


def _unpacked(path: Path) -> str:
    """`a.jsonl` for `a.jsonl.gz`."""
    return path.stem if Path(path.stem).suffix else f"{path.stem}.jsonl"
