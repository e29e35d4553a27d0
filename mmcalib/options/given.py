"""Arguments of vLLM beside a calibration's own options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from mmcalib.errors import UsageError
from mmcalib.wording import flag

# What a calibration derives or asks for itself, by vLLM's name, and how it is told.
_OWN: Final = {
    "model": "--model MODEL",
    "limit_mm_per_prompt": "--count image=4",
    "mm_processor_kwargs": "--max-tokens-per-item N; mmcalib validate judges a file of your own",
    "mm_processor_cache_gb": "--ram-budget 8GiB",
    "media_io_kwargs": """--media-io-kwargs '{"video": {"fps": 1}}'""",
    "max_model_len": "--max-model-len 32768",
    "max_num_batched_tokens": "--max-num-batched-tokens 8192",
    "max_num_seqs": "Policy(max_num_seqs=64)",
    "gpu_memory_utilization": "Policy(gpu_memory_utilization=0.9)",
}
DECIDED: Final = frozenset(_OWN) - {"model"}
# Those of the user's configuration hold, unless an option says otherwise; the others are compared.
TAKEN: Final = (
    "max_model_len",
    "max_num_seqs",
    "gpu_memory_utilization",
    "media_io_kwargs",
)
# What `--pin-kv-cache` writes.
_PINNED: Final = ("kv_cache_memory_bytes", "compilation_config", "cudagraph_capture_sizes")


def refuse_own(engine_args: Mapping[str, Any], *, pinned: bool) -> None:
    """Raises UsageError for the first that a calibration decides itself, with the option that tells
    it what to decide.
    """
    for name in engine_args:
        if name in _OWN:
            raise UsageError(
                f"{flag(name)} is not one of vLLM's arguments that run passes on: it is derived, "
                "or an option of mmcalib run itself",
                hint=_OWN[name],
            )
        if pinned and name in _PINNED:
            raise UsageError(
                f"{flag(name)} and --pin-kv-cache are one or the other",
                hint="leave one of them out",
            )
