"""A rehearsal's answer, as the child gives it, for tests that need no child."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from mmcalib.domain.memory import (
    Budget,
    Division,
    Dummy,
    EncoderOutputs,
    LiveTensor,
    PhasePeak,
    RehearsedMemory,
)
from mmcalib.domain.shapes import Modality
from mmcalib.prediction.worst_steps import RehearseAll
from mmcalib.releases.constants import divide
from tests.builders import budget

GIB = 1 << 30
# Bytes of one cached embedding of Qwen3-VL-8B.
WIDTH = 32_768
BUDGET = budget(16_384, {"image": 16_384}, max_num_batched_tokens=8_192)
PEAK = LiveTensor(890 << 20, "aten.addmm.default", (65_536, 6_840), "bfloat16", "visual.mlp.up")


# As vllm#56492 describes an extensible KV cache.
LATE = Division(1.0, 1.0, (), True, 150 << 20, 0.2, 0.02)


def rehearsed(**changes: Any) -> RehearsedMemory:
    """Qwen2.5-VL-3B, one image, on a GPU of 22 GiB; the figures add up."""
    found = RehearsedMemory(
        vllm="0.32.0",
        division=divide("0.32.0"),
        runner="V2",
        sampler="FlashInfer",
        attention="FLASH_ATTN",
        encoder_attention="FLASH_ATTN",
        dtype="bfloat16",
        tensor_parallel_size=1,
        total_bytes=22 * GIB,
        requested_bytes=20 * GIB,
        weights_bytes=7 * GIB,
        buffers_bytes=GIB // 4,
        activation_peak_bytes=2 * GIB,
        phases=(
            PhasePeak("encoder", 2 * GIB, 0, "", (PEAK,)),
            PhasePeak("language model", GIB // 2, 0, "", ()),
            PhasePeak("sampler", GIB // 4, GIB // 8, "aten.sort.default", ()),
        ),
        encoder_tokens=16_384,
        non_torch_bytes=GIB // 8,
        cudagraph_bytes=GIB // 8,
        cudagraphs=20,
        encoder_cache_bytes=64 << 20,
        kv_cache_bytes=21 * GIB // 2,
        kv_bytes_per_token=36_864,
        kv_cache_tokens=305_832,
        max_concurrency=9.33,
        problem="",
        budget=BUDGET,
        assumptions=("nothing else runs on the GPU",),
        seconds=1.5,
    )
    return replace(found, **changes)


def answering(
    answer: Callable[[Mapping[str, Any]], RehearsedMemory | None], asked: list[Any] | None = None
) -> RehearseAll:
    """Rehearse several arguments as the first of them, and note them all."""

    def ask(every: Any, steps: Any = ()) -> list[RehearsedMemory | None]:
        if asked is not None:
            asked.extend(every)
        return [answer(every[0])] * len(every)

    return ask


def limits(cache: int, seqs: int, item: int = 324, modality: Modality = "image") -> Budget:
    items = max(1, min(cache // item, seqs))
    dummies = {modality: Dummy(item, 1_536_000, {})}
    profiled = {"profiled_items": items, "dummies": dummies}
    return budget(cache, {modality: item}, max_num_seqs=seqs, **profiled)


def peaks(encoder: int, language: int) -> tuple[PhasePeak, ...]:
    return (
        PhasePeak("encoder", encoder, 0, "", ()),
        PhasePeak("language model", language, 0, "", ()),
        PhasePeak("sampler", language // 2, 0, "", ()),
    )


def deepstack(budget: Budget, **changes: Any) -> RehearsedMemory:
    """Qwen3-VL-8B, rehearsed: 111 KB a token (language model), 173 KB (encoder), four levels."""
    tokens = budget.profiled_items * 324
    language = budget.max_num_batched_tokens * 111_000 + tokens * WIDTH
    encoder = tokens * 173_000
    found = rehearsed(
        budget=budget,
        activation_peak_bytes=max(encoder, language),
        phases=peaks(encoder, language),
        encoder_tokens=tokens,
        outputs=EncoderOutputs(WIDTH, tokens * WIDTH, shared=True),
        merge_peak_bytes=11 * budget.max_num_batched_tokens * 4096 * 2,
    )
    return replace(found, **changes)
