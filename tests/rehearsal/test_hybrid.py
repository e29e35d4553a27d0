"""Models with recurrent layers beside attention: Qwen3.5 and its heirs."""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from mmcalib.domain.memory import RehearsedMemory
from mmcalib.releases.constants import VLLM_SLACK_BYTES
from mmcalib.remedies.memory import read_problem
from tests.builders import some
from tests.programs import answer_of
from tests.rehearsal.conftest import Theatre

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

from memory.allowances import load  # noqa: E402

pytestmark = [pytest.mark.engine, pytest.mark.slow]
HYBRID = "Qwen/Qwen3.8-27B"
GIB, MIB = 1 << 30, 1 << 20
BATCHED = 8192
ARGS = {"max_model_len": 32_768, "max_num_batched_tokens": BATCHED, "max_num_seqs": 256}
# 16 of its 64 layers attend, with 4 heads of 256 for keys and as many for values, two bytes each.
PER_TOKEN = 16 * 2 * 4 * 256 * 2
# Recurrent layers: 48 heads of 128 × 128 (float32), 3 convolution steps of 10,240 (bfloat16).
STATE = 48 * 128 * 128 * 4 + 3 * 10_240 * 2
# Two hidden states' projection, then an attention layer with gated queries, in bfloat16.
HEAD = 5120 * (2 * 5120 + 12_288 + 2048 + 6144 + 3 * 17_408) * 2


@pytest.fixture(scope="module")
def hybrid(h100: Theatre) -> RehearsedMemory:
    return h100.rehearse(HYBRID, **ARGS)


def test_it_starts_with_the_published_weights(hybrid: RehearsedMemory) -> None:
    """51.1 GiB by a public log of vLLM (row `q38-27b-gfx1151-skipmm`)."""
    assert hybrid.problem == ""
    assert hybrid.weights_bytes / GIB == pytest.approx(51.1, abs=0.15)
    assert "GDN_ATTN" in hybrid.attention


def test_allowances_are_what_starts_took(theatres, h100: Theatre, hybrid: RehearsedMemory) -> None:
    known = load(BENCHMARKS / "memory_allowances.toml")
    for found, layers in ((hybrid, 64), (h100.rehearse(), 0)):
        allowance = found.cudagraph_bytes - found.cudagraph_attention_bytes
        assert allowance == pytest.approx(known.fit().predict(found.cudagraphs, layers), rel=0.01)
        assert found.non_torch_bytes == pytest.approx(known.outside_bytes("newer"), abs=MIB)
    more = {"newer": max(one.nbytes for one in known.convolution), "older": 0}
    for kind, theatre in (("newer", h100), ("older", theatres("L4"))):
        outside = theatre.rehearse("openai/whisper-large-v3").non_torch_bytes
        assert outside == pytest.approx(known.outside_bytes(kind) + more[kind], abs=MIB)
    assert any("CUDA graphs of a gated-delta model:" in line for line in hybrid.assumptions)


def test_blocks_are_as_large_as_a_state(hybrid: RehearsedMemory) -> None:
    """A block fits a page of state: 32,768 tokens take theirs and 48 fixed states, not 98 GiB."""
    assert hybrid.kv_bytes_per_token == PER_TOKEN
    request = ARGS["max_model_len"] * PER_TOKEN + 48 * STATE
    assert hybrid.kv_cache_bytes / some(hybrid.max_concurrency) == pytest.approx(request, rel=0.1)


def test_a_published_pool_holds_as_many_tokens(theatres: Callable[[str], Theatre]) -> None:
    """Row `q38-27b-gb10-786k`, of 0.27.1: 820,013 tokens and 1.04 requests in 50.29 GiB."""
    longest = 786_432
    found = theatres("GB10").rehearse(
        HYBRID,
        max_model_len=longest,
        max_num_batched_tokens=2048,
        kv_cache_memory_bytes=round(50.29 * GIB),
        hf_overrides={"text_config": {"max_position_embeddings": longest}},
    )
    assert found.kv_cache_tokens == pytest.approx(820_013, rel=0.005)
    assert found.non_torch_bytes == pytest.approx(2.92 * GIB, abs=MIB)
    assert found.max_concurrency == pytest.approx(1.04, abs=0.005)


def test_a_prompt_is_rehearsed_as_it_is_served(hybrid: RehearsedMemory) -> None:
    """No profile of vLLM's has what the recurrent layers compute (vllm#52872)."""
    alone = hybrid.prefills[0]
    language = next(p.peak_bytes for p in hybrid.phases if p.name == "language model")
    assert alone.prompts == 1
    assert 0.5 * language < alone.phase.peak_bytes < 2 * language


def test_each_prompt_of_a_step_brings_its_state(hybrid: RehearsedMemory) -> None:
    """`_forward_core` reads and writes states in float32; a state takes a block in four groups."""
    alone, many = hybrid.prefills
    assert many.prompts == (some(hybrid.kv_blocks) - 1) // 4
    assert hybrid.prefill == many
    held = [one.nbytes for one in many.phase.largest]
    assert held.count(many.prompts * 48 * 128 * 128 * 4) == 2
    assert many.phase.peak_bytes > alone.phase.peak_bytes


# Of vllm#52872, but for its quantisation (EXL3, some of it FP4): 64 layers on capability 12.0,
# where vLLM took Triton's kernels then; 0.32 takes FlashInfer's. A larger card holds the weights.
SERVED = {
    "max_model_len": 131_072,
    "max_num_seqs": 4,
    "kv_cache_dtype": "fp8_e4m3",
    "attention_backend": "TRITON_ATTN",
    "additional_config": {"gdn_prefill_backend": "triton"},
    "kv_cache_memory_bytes": 9 * GIB,
}


def short(found: RehearsedMemory) -> int:
    """Return the bytes that a served step takes beyond the reserve, beside a full encoder cache."""
    peak_bytes = some(found.prefill).phase.peak_bytes
    return peak_bytes + found.encoder_cache_bytes - found.activation_peak_bytes


@pytest.mark.parametrize(("tokens", "passes"), [(8192, False), (2048, True)])
def test_the_language_model_reserves_too_little_for_8192_tokens(theatres, tokens, passes) -> None:
    """vllm#52872 without its vision: h, w, u, v_new and A of `chunk_gated_delta_rule_fwd`
    (vllm/third_party/flash_linear_attention/ops/chunk.py), 72 KiB a token (vllm#54775), of which
    the profile runs 64 (`_warmup_prefill_kernels`).
    """
    found = theatres("RTX PRO 6000").rehearse(
        HYBRID, **SERVED, max_num_batched_tokens=tokens, language_model_only=True
    )
    assert some(found.prefill).phase.peak_bytes > tokens * 72 * 1024
    assert (short(found) <= VLLM_SLACK_BYTES) is passes


@pytest.mark.parametrize(("tokens", "published"), [(8192, 2.84), (2048, 2.21)])
def test_no_single_step_explains_vllm_52872(theatres, tokens: int, published: float) -> None:
    """Rows `hybrid64-5090-52872-8192` and `-2048`, with an encoder and six drafted tokens: both
    pass by the size of a step (docs/explain/accuracy-and-limits.md).
    """
    found = theatres("RTX PRO 6000").rehearse(
        HYBRID,
        **SERVED,
        max_num_batched_tokens=tokens,
        speculative_config={"method": "mtp", "num_speculative_tokens": 6},
        compilation_config={"mode": "NONE", "cudagraph_mode": "FULL_DECODE_ONLY"},
    )
    assert short(found) <= VLLM_SLACK_BYTES
    step_bytes = some(found.prefill).phase.peak_bytes + found.encoder_cache_bytes
    assert step_bytes < published * GIB


def test_its_kernels_are_those_of_the_gpu(theatres: Callable[[str], Theatre]) -> None:
    """Triton keeps 2 bytes × 48 × 128 × 128 for every 64 tokens; FlashInfer (Hopper) does not."""
    triton = theatres("A100-80G").rehearse(HYBRID, **ARGS)
    states = BATCHED // 64 * 48 * 128 * 128 * 2
    assert states in {one.nbytes for one in triton.prefills[0].phase.largest}


def test_cuda_keeps_local_memory_for_the_largest_stack(theatres: Callable[[str], Theatre]) -> None:
    """FLA's `chunk_fwd_kernel_o` has too large tiles for two warps where shared memory allows them,
    as on an A100, where two starts of Qwen3.5-0.8B took 2.3 GiB more (rows `q35-08b-a100*`).
    """
    from triton import knobs

    found = theatres("A100-80G").rehearse("Qwen/Qwen3.5-0.8B")
    line = next(one for one in found.assumptions if "chunk_fwd_kernel_o" in one)
    stated = some(re.search(r"([\d,]+) bytes for each of 221,184 threads", line))
    stack = int(stated[1].replace(",", ""))
    cubins = Path(knobs.cache.dir).glob("*/chunk_fwd_kernel_o.cubin")
    usage = [knobs.nvidia.cuobjdump.path, "--dump-resource-usage"]
    stacks = (subprocess.check_output([*usage, one], text=True) for one in cubins)
    assert any(f"STACK:{stack} " in one for one in stacks)
    # 108 multiprocessors of 2,048 threads. A new context has 1,024 bytes for each.
    grown = (stack - 1024) * 108 * 2048
    assert grown > 2 * GIB
    assert 0 < found.buffers_bytes - grown < GIB // 2
    smaller = theatres("L4").rehearse("Qwen/Qwen3.5-0.8B")
    assert smaller.buffers_bytes < GIB // 2
    assert not any("stacks" in one for one in smaller.assumptions)


def test_others_have_no_such_step(qwen: RehearsedMemory) -> None:
    assert qwen.prefill is None


def test_a_head_that_drafts_brings_its_weights_and_its_layer_of_cache(h100, hybrid) -> None:
    """0.79 GiB between two public logs (`q38-27b-gfx1151-skipmm` and `-mtp`), and hidden states."""
    drafting = h100.rehearse(
        HYBRID, **ARGS, speculative_config={"method": "mtp", "num_speculative_tokens": 1}
    )
    assert round(HEAD / GIB, 2) == 0.79
    head = drafting.weights_bytes - hybrid.weights_bytes
    assert head == pytest.approx(HEAD + BATCHED * 5120 * 2, rel=0.01)
    assert drafting.kv_bytes_per_token == PER_TOKEN // 16 * 17
    # What it drafts is checked in one step, and a state is kept for each token of that.
    assert some(drafting.max_concurrency) < some(hybrid.max_concurrency)


# Why a KV cache of so many blocks is refused for so many sequences, in vLLM's own words.
_REFUSAL = """
import json, sys
from types import SimpleNamespace
from vllm.config.compilation import CompilationConfig, CUDAGraphMode
from vllm.v1.attention.backend import AttentionCGSupport

seqs, blocks = map(int, sys.argv[1:])
config = CompilationConfig(cudagraph_mode=CUDAGraphMode.FULL_AND_PIECEWISE)
cache = SimpleNamespace(has_mamba_layers=True, num_blocks=blocks)
said = ""
try:
    config.resolve_cudagraph_mode_and_sizes(
        AttentionCGSupport.ALWAYS, None, kv_cache_config=cache, max_num_reqs=seqs
    )
except ValueError as error:
    said = " ".join(str(error).split())
print(json.dumps(said))
"""


@pytest.mark.parametrize(
    ("model", "gpu", "seqs", "blocks"),
    [
        ("Qwen/Qwen3.5-27B", "H100-PCIe", 1024, 358),
        ("Qwen/Qwen3.5-4B", "L4", 256, 564),
        ("Qwen/Qwen3.5-9B", "RTX-5090", 256, 514),
        ("Qwen/Qwen3.5-0.8B", "RTX-3070", 256, 533),
    ],
)
def test_a_start_is_refused_for_its_sequences_as_by_vllm(
    theatres, model, gpu, seqs, blocks
) -> None:
    found = theatres(gpu).rehearse(model)
    assert some(found.budget).max_num_seqs == seqs
    said = answer_of("-c", _REFUSAL, str(seqs), str(blocks))
    assert found.problem == said
    assert bool(said) is (seqs > blocks)
    assert found.kv_blocks == (None if said else blocks)


def test_what_profiling_its_graphs_allocates_must_fit(theatres: Callable[[str], Theatre]) -> None:
    """A block for each of 256 sequences, before the pool is sized: 12.29 GiB in a public log."""
    found = theatres("RTX-5090").rehearse(f"{HYBRID}-FP8", **ARGS)
    assert "one block for each of 256 sequences. Lower max_num_seqs to at most" in found.problem
    assert 16 < (read_problem(found).most_sequences or 0) < 256
