"""What a plan may not give up: engine arguments that stay, or stay at least at a value."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from mmcalib.derive.amount import amount
from mmcalib.derive.fix import Fix
from mmcalib.errors import UsageError
from mmcalib.wording import flag

# Of these less is what a fix takes away; of the others a fix takes all or nothing.
_LEAST: Final = ("max_model_len", "max_num_seqs", "max_num_batched_tokens")
KEEPABLE: Final = (
    *_LEAST,
    "limit_mm_per_prompt",
    "language_model_only",
    "mm_processor_kwargs",
    "media_io_kwargs",
    "kv_cache_dtype",
    "quantization",
    "gpu_memory_utilization",
    "enforce_eager",
    "max_cudagraph_capture_size",
    "cpu_offload_gb",
    "tensor_parallel_size",
    "mm_processor_cache_gb",
)


@dataclass(frozen=True, slots=True)
class Keep:
    """By name the least that an argument may become; None where it may not be changed at all."""

    least: Mapping[str, int | None] = field(default_factory=dict)

    def allows(self, fix: Fix) -> bool:
        return all(self._allows(name, value) for name, value in fix.changes.items())

    def down(self, name: str, values: Iterable[int]) -> list[int]:
        """The largest first: those that the argument may become, its least among them."""
        least = self.least.get(name) or 0
        return sorted({max(value, least) for value in values}, reverse=True)

    def _allows(self, name: str, value: object) -> bool:
        if name not in self.least:
            return True
        least = self.least[name]
        return least is not None and isinstance(value, int) and value >= least


NOTHING_KEPT: Final = Keep()


def parse_kept(texts: Iterable[str]) -> Keep:
    """`max_model_len=32k` or `kv_cache_dtype`, as flags or as arguments. Raises UsageError."""
    return Keep(dict(map(_parsed, texts)))


def _parsed(text: str) -> tuple[str, int | None]:
    name, given, value = (part.strip() for part in text.partition("="))
    name = name.lstrip("-").replace("-", "_")
    if name not in KEEPABLE:
        raise UsageError(
            f"--keep {text!r}: no fix changes {flag(name)}", hint="one of " + ", ".join(KEEPABLE)
        )
    if not given:
        return name, None
    least = amount(value)
    if name not in _LEAST or not least:
        raise UsageError(
            f"--keep {text!r}: not a value that {name} can be held at",
            hint=f"--keep {name}" + (", or --keep max_model_len=32k" if name in _LEAST else ""),
        )
    return name, int(least)
