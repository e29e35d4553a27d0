"""vLLM's environment variables, as it reads them."""

from __future__ import annotations

from collections.abc import Iterable

from mmcalib.domain.model import (
    AUDIO_BYTES,
    AUDIO_FILE,
    AUDIO_SECONDS,
    DOWNLOAD,
    PIXELS,
    REQUEST_BYTES,
)
from mmcalib.releases.release import VLLM_0_21, VLLM_0_26, VLLM_0_28, VLLM_0_29, VLLM_0_33

# The first release whose chat heeds it: 0.28 knows a file's size for transcriptions alone.
_SINCE = {
    AUDIO_FILE: VLLM_0_29,
    AUDIO_SECONDS: VLLM_0_26,
    AUDIO_BYTES: VLLM_0_28,
    DOWNLOAD: VLLM_0_29,
    REQUEST_BYTES: VLLM_0_33,
    PIXELS: VLLM_0_26,
}


def whole_numbers(names: Iterable[str]) -> dict[str, int]:
    """The values of those that this release's chat heeds."""
    from vllm import envs

    known = (name for name in names if name not in _SINCE or _SINCE[name].reached)
    return {name: int(getattr(envs, name)) for name in known}


def subtracts_graphs() -> bool:
    """Whether startup takes its estimate of CUDA graphs off the KV cache: since 0.21, if not told
    otherwise by the environment.
    """
    from vllm import envs

    return VLLM_0_21.reached and bool(envs.VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS)
