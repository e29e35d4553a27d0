"""In which phase of its life a server was, by traceback frames or by the last line that tells."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

from mmcalib.derive.logs import causes
from mmcalib.derive.logs.line import Line

Phase = Literal[
    "start",
    "weights",
    "profile",
    "profile: encoder",
    "profile: language model",
    "profile: sampler",
    "kv cache",
    "cuda graphs",
    "warm-up",
    "serving",
    "serving: encoder",
]

# Function names of vllm/v1/worker and vllm/worker, 0.8 to 0.33. The first group of which a frame
# is in the traceback decides: `_initialize_kv_caches` calls the profile, `initialize_from_config`
# (0.11) calls the warm-up, and V0 profiles through `execute_model`.
_ENCODER = {
    *("embed_multimodal", "get_multimodal_embeddings", "_profile_multimodal"),
    *("_execute_mm_encoder", "execute_mm_encoder", "profile_encoder_cache", "_get_mm_dummy_batch"),
    *("_process_image_input", "_process_video_input", "_process_audio_input"),
}
_SAMPLER = {"_dummy_sampler_run", "_dummy_pooler_run"}
_GRAPHS = {"capture_model", "profile_cudagraph_memory", "_capture_cudagraphs"}
_PROFILE = {"profile_run", "determine_available_memory", "determine_num_available_blocks"}
_WEIGHTS = {"load_model", "get_model", "initialize_model", "_initialize_model", "load_weights"}
_KV_CACHE = {
    *("initialize_kv_cache", "initialize_kv_cache_tensors", "_allocate_kv_cache_tensors"),
    *("_allocate_kv_cache", "_check_enough_kv_cache_memory", "check_enough_kv_cache_memory"),
    "raise_if_cache_size_invalid",
}
_WARM_UP = {"compile_or_warm_up_model", "warmup_kernels"}
_SERVING = {"run_busy_loop", "execute_model", "sample_tokens", "_process_engine_step"}

_FRAME = re.compile(r'File "[^"]{1,500}", line \d{1,9}, in (\w{1,100})', re.ASCII)

# What a line says of the phase that follows it.
_MILESTONES: tuple[tuple[str, Phase], ...] = (
    ("Starting to load model", "weights"),
    ("Loading model weights took", "profile"),
    ("Model loading took", "profile"),
    ("Encoder cache will be initialized", "profile: encoder"),
    ("Skipping memory profiling for multimodal", "profile: language model"),
    ("Dynamo bytecode transform time", "profile: language model"),
    ("Profiling CUDA graph memory", "cuda graphs"),
    ("Available KV cache memory", "kv cache"),
    ("reserved for KV Cache is", "kv cache"),
    ("KV cache size:", "cuda graphs"),
    ("CPU blocks: ", "cuda graphs"),
    ("Graph capturing finished", "warm-up"),
    ("init engine (profile", "serving"),
    ("Application startup complete", "serving"),
)


def frame_in(text: str) -> str | None:
    """The function of a traceback's frame."""
    found = _FRAME.search(text) if 'File "' in text else None
    return found.group(1) if found else None


def milestone_in(line: Line) -> Phase | None:
    if line.level in {"ERROR", "CRITICAL"}:
        return None
    for mark, phase in _MILESTONES:
        if mark in line.text:
            return phase
    return None


def phase_of_frames(frames: Sequence[str]) -> Phase | None:
    """The phase of a traceback by its functions; None where none of them tells."""
    seen = set(frames)
    encoder = bool(seen & _ENCODER)
    if seen & _SAMPLER:
        return "profile: sampler"
    if seen & _GRAPHS:
        return "cuda graphs"
    if seen & _PROFILE:
        if encoder:
            return "profile: encoder"
        return "profile: language model" if "_dummy_run" in seen else "profile"
    if seen & _WEIGHTS:
        return "weights"
    if seen & _KV_CACHE:
        return "kv cache"
    if seen & _WARM_UP:
        return "warm-up"
    if seen & _SERVING:
        return "serving: encoder" if encoder else "serving"
    return None


def phase_of_cause(cause: causes.Cause) -> Phase | None:
    """The phase in which alone this can happen."""
    match cause:
        case causes.NoKvCache() | causes.KvCacheTooSmall() | causes.FrontendDecoding():
            return "kv cache"
        case causes.SamplerOutOfMemory():
            return "profile: sampler"
        case causes.GpuOccupied() | causes.ItemAboveBatch() | causes.ExternalWeights():
            return "start"
        case causes.ItemRefused():
            return "serving"
        case _:
            return None
