"""Trap of `mm_ipc_gpu_memory_gb`: GPU memory for the API server, taken from the KV cache."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mmcalib.checks.check import Check, CheckId
from mmcalib.checks.trap import Figures, Taken, Trap, TrapRule
from mmcalib.releases.constants import GPU_VIDEO_BACKEND
from mmcalib.sizes import GIB

API_SERVER_MEMORY = CheckId("memory of the API server")

SIZE = "mm_ipc_gpu_memory_gb"


def frontend(engine_args: Mapping[str, Any], known: Figures) -> Trap | None:
    """vLLM subtracts it after its profile (`reserve_mm_ipc_gpu_memory`,
    vllm/multimodal/gpu_ipc_memory.py of 0.32, from `determine_available_memory`), so that a
    rehearsal has it too, among the buffers. Only video decoders on the GPU use it.
    """
    given = engine_args.get(SIZE) or 0
    if not given:
        return None
    taken = Taken("of buffers: video decoding by the API server", round(given * GIB))
    detail = (
        f"{SIZE} {given:g}: {given:.2f} GiB less KV cache, reserved for decoding in the API server "
        "(reserve_mm_ipc_gpu_memory, vllm/multimodal/gpu_ipc_memory.py)"
    )
    name = API_SERVER_MEMORY
    if not known.counts.get("video"):
        why = f"{detail}, though no video is served: nothing else uses it"
        return Trap(Check(name, "warn", why, "remove mm-ipc-gpu-memory-gb"), taken)
    video = (engine_args.get("media_io_kwargs") or {}).get("video") or {}
    if GPU_VIDEO_BACKEND not in (video.get("backend"), video.get("video_backend")):
        why = f"{detail}; only video backends on the GPU use it, and media-io-kwargs names none"
        return Trap(Check(name, "warn", why, "remove mm-ipc-gpu-memory-gb"), taken)
    more = "; its decoders take more for each API server, which vLLM subtracts too"
    return Trap(Check(name, "pass", detail + more), taken)


TRAPS = (TrapRule(70, frontend),)
