"""Sizes as people write them."""

from __future__ import annotations

import re
from decimal import Decimal

BYTES_PER = {
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
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
