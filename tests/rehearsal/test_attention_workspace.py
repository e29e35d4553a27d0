"""FlashInfer's workspaces, inside vLLM's CUDA graph estimate only if graphs capture attention."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from mmcalib.domain.memory import RehearsedMemory
from tests.engine.conftest import QWEN
from tests.rehearsal.conftest import Theatre

pytestmark = [pytest.mark.engine, pytest.mark.slow]

MIB = 1 << 20
# VLLM_FLASHINFER_WORKSPACE_BUFFER_SIZE (vllm/envs.py), and what a wrapper keeps for its plan.
WORKSPACE, PLAN = 394 * MIB, 8 * MIB
ARGS: dict[str, Any] = {"max_model_len": 8192, "max_num_batched_tokens": 2048}


@pytest.fixture(scope="module")
def blackwell(theatres: Callable[[str], Theatre]) -> Theatre:
    return theatres("RTX-5090")


def modes(theatre: Theatre, mode: str, **more: Any) -> RehearsedMemory:
    return theatre.rehearse(QWEN, **{**ARGS, **more}, compilation_config={"cudagraph_mode": mode})


def allowance(found: RehearsedMemory) -> int:
    return found.cudagraph_bytes - found.cudagraph_attention_bytes


def test_flashattention_keeps_nothing(blackwell: Theatre) -> None:
    found = modes(blackwell, "FULL_DECODE_ONLY")
    assert found.attention == "FLASH_ATTN"
    assert found.cudagraph_attention_bytes == 0


def test_the_pool_is_smaller_by_the_workspace_of_full_graphs(blackwell: Theatre) -> None:
    """XQA's, for decoding. The prompts' one exists earlier (`init_attn_backend`), unreserved."""
    found = modes(blackwell, "FULL_DECODE_ONLY", kv_cache_dtype="fp8")
    assert found.attention == "FLASHINFER"
    assert found.cudagraph_attention_bytes == WORKSPACE
    assert found.kept_bytes >= WORKSPACE + PLAN
    whole = modes(blackwell, "NONE", kv_cache_dtype="fp8")
    assert whole.kv_cache_bytes - found.kv_cache_bytes == allowance(found) + WORKSPACE
    assert any("vLLM's graph estimate adds 0.38 GiB" in said for said in found.assumptions)


def test_long_steps_ask_for_more(blackwell: Theatre) -> None:
    """Since 0.26: 16 bytes for each token, head and entry (`_get_workspace_buffer`)."""
    tokens, heads, width = 16_384, 16, 128
    kept = [
        modes(blackwell, "FULL_DECODE_ONLY", kv_cache_dtype="fp8", max_num_batched_tokens=most)
        for most in (2048, tokens)
    ]
    more = kept[1].kept_bytes - kept[0].kept_bytes
    assert more == tokens * heads * width * 16 - WORKSPACE


def test_every_rehearsal_finds_them_anew(blackwell: Theatre) -> None:
    """XQA's is in a global of vLLM's module, which outlives a worker."""
    first = blackwell.bytes_of(QWEN, **ARGS, kv_cache_dtype="fp8")
    assert first.cudagraph_attention_bytes == WORKSPACE + PLAN
    assert first == blackwell.bytes_of(QWEN, **ARGS, kv_cache_dtype="fp8")
