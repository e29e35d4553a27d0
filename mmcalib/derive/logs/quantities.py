"""Numbers as vLLM and PyTorch write them, in bytes."""

from __future__ import annotations

from mmcalib.sizes import GIB, KIB, MIB, TIB

# Bounded, so that no text makes a number that Python refuses to read or a search that backtracks.
NUMBER = r"-?\d{1,15}(?:\.\d{1,20})?"
COUNT = r"\d{1,3}(?:,\d{3}){1,5}|\d{1,15}"
UNIT = r"TiB|GiB|GB|Gi|MiB|MB|Mi|KiB|KB|bytes|B"

# vLLM up to 0.8 wrote "GB" for bytes / 2**30: `logger.info("Model loading took %.4f GB", ... /
# GiB_bytes)` (v1/worker/gpu_model_runner.py), `needed_memory/1024/1024/1024} GB KV cache`
# (v1/core/kv_cache_utils.py).
_BYTES = {
    "bytes": 1,
    "B": 1,
    "KiB": KIB,
    "KB": KIB,
    "MiB": MIB,
    "MB": MIB,
    "Mi": MIB,
    "GiB": GIB,
    "GB": GIB,
    "Gi": GIB,
    "TiB": TIB,
}


def size_bytes(number: str, unit: str = "GiB") -> int:
    """Bytes of a number that `NUMBER` matches and a unit that `UNIT` matches."""
    return int(number) if unit in {"bytes", "B"} and "." not in number else _scaled(number, unit)


def _scaled(number: str, unit: str) -> int:
    return round(float(number) * _BYTES[unit])


def count(number: str) -> int:
    """The integer of what `COUNT` matches."""
    return int(number.replace(",", ""))
