"""Whether this CPU computes in bfloat16; if not, engine and activation peak are float32's."""

from pathlib import Path

import pytest

_FLAGS = Path("/proc/cpuinfo")


def emulated() -> bool:
    """Return True on x86 without AVX-512; of other machines nothing is known."""
    flags = _FLAGS.read_text("utf-8", errors="replace") if _FLAGS.exists() else ""
    return " avx2 " in flags and " avx512f " not in flags


NATIVE = pytest.mark.skipif(
    emulated(), reason="the CPU has no AVX-512: the engine computes in float32"
)
