"""What went wrong in a server's log, in words."""

from __future__ import annotations

from mmcalib.derive.logs.causes import (
    AllocationFailed,
    Cause,
    ExternalWeights,
    FrontendDecoding,
    GpuOccupied,
    ItemAboveBatch,
    ItemRefused,
    KvCacheTooSmall,
    NoKvCache,
    OutOfMemory,
    ProcessKilled,
    SamplerOutOfMemory,
)
from mmcalib.derive.logs.startup_log import Trouble
from mmcalib.wording import gib, number


def failure_words(trouble: Trouble) -> str:
    """One sentence: what, and in which phase of the server's life."""
    phase = f" ({trouble.phase})" if trouble.phase else ""
    return f"{_cause(trouble.cause)}{phase}"


def _cause(cause: Cause) -> str:
    match cause:
        case OutOfMemory(tried_bytes=None):
            return "the GPU had no memory left"
        case OutOfMemory():
            said = [f"out of memory: {gib(cause.tried_bytes)} were wanted"]
            if cause.free_bytes is not None:
                said.append(f"{gib(cause.free_bytes)} of {gib(cause.total_bytes)} were free")
            if cause.allocated_bytes is not None:
                said.append(f"PyTorch held {gib(cause.allocated_bytes)}")
            return ", ".join(said)
        case AllocationFailed():
            return f"{gib(cause.tried_bytes)} were wanted and came only after a clean-up"
        case SamplerOutOfMemory():
            return f"no memory to warm the sampler up with {cause.dummy_requests} requests"
        case NoKvCache():
            return "nothing was left for the KV cache"
        case KvCacheTooSmall():
            return (
                f"the KV cache does not hold one request of {number(cause.max_model_len)} tokens"
                + (f": {gib(cause.needed_bytes)} needed" if cause.needed_bytes else "")
                + (f", {gib(cause.available_bytes)} there" if cause.needed_bytes else "")
            )
        case GpuOccupied():
            return (
                f"{gib(cause.requested_bytes)} were asked for and only {gib(cause.free_bytes)} "
                "free at the start: something else runs on the GPU"
            )
        case ExternalWeights():
            return (
                f"another process holds {gib(cause.weights_bytes)} of weights, more than the "
                f"{gib(cause.requested_bytes)} that vLLM may use"
            )
        case FrontendDecoding():
            return (
                f"decoding on the GPU reserves {gib(cause.reserved_bytes)}, and "
                f"{gib(cause.available_bytes)} were left for the KV cache"
            )
        case ItemRefused():
            return (
                f"a request was refused: one {cause.modality} has {number(cause.item_tokens)} "
                f"tokens, the encoder cache holds {number(cause.encoder_cache_tokens)}"
            )
        case ItemAboveBatch():
            return (
                f"max_num_batched_tokens is {number(cause.max_num_batched_tokens)}, the largest "
                f"item has {number(cause.item_tokens)} tokens and the model cannot split it"
            )
        case ProcessKilled():
            why = ": out of host memory?" if cause.signal == 9 else ""
            return f"{cause.process} was killed by signal {cause.signal}{why}"
