"""Units of bytes, and sizes as people write them."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Final

KIB: Final = 1 << 10
MIB: Final = 1 << 20
GIB: Final = 1 << 30
TIB: Final = 1 << 40

BYTES_PER = {
    "mib": MIB,
    "gib": GIB,
    "tib": TIB,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
}
# pydantic's ByteSize would also take `8`, `8bit` and, for 5 bytes, `5.GiB`: mistakes of somebody.
SIZE = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)\s*([mgt]i?b)", re.IGNORECASE | re.ASCII)


def size_bytes(text: str) -> int | None:
    """Bytes of `24GiB` or `512 MB`; GB is 10**9 bytes and GiB 2**30. None for anything else."""
    match = SIZE.fullmatch(text.strip())
    return int(Decimal(match[1]) * BYTES_PER[match[2].lower()]) if match else None
