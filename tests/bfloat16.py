"""Whether this CPU computes in bfloat16, which engines run in; where it does not, torch emulates it
and one picture takes half a minute to encode.
"""

from __future__ import annotations

from pathlib import Path

import pytest

_FLAGS = Path("/proc/cpuinfo")


def emulated() -> bool:
    """Of x86 without AVX-512; of others nothing is known."""
    flags = _FLAGS.read_text("utf-8", errors="replace") if _FLAGS.exists() else ""
    return " avx2 " in flags and " avx512f " not in flags


ENCODES = pytest.mark.skipif(
    emulated(), reason="the CPU has no AVX-512: encoding in emulated bfloat16 takes too long"
)
