"""Quantised weights: bits and scales of each method, on each kernel that vLLM chooses."""

from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

pytest.importorskip("torch")

from mmcalib.child.rehearsal.device import NoFakeImplementation
from mmcalib.child.rehearsal.patches.flashinfer import ALTERNATIVES_HINT, StubModule, StubPackages
from mmcalib.domain.memory import RehearsedMemory
from mmcalib.engine.messages import Rehearse
from mmcalib.errors import EngineError
from mmcalib.models.catalogue import Geometry, assume_build, find_model
from mmcalib.models.checkpoint import materialise
from mmcalib.releases.release import VLLM_0_33
from tests.builders import some
from tests.rehearsal.conftest import Theatre
from tests.schemas import DATA
from tests.upstream import since

pytestmark = [pytest.mark.engine, pytest.mark.slow]
MODEL = "Qwen/Qwen3-VL-8B-Instruct"
# Two loads differ by LAYERS layers only; all else, and unfilled allocator blocks, are in both.
FEW, LAYERS = 3, 3
DEPTHS = (FEW, FEW + LAYERS)
ARGS: dict[str, Any] = {
    "max_model_len": 8192,
    "max_num_batched_tokens": 2048,
    "limit_mm_per_prompt": {"image": 1, "video": 0},
}
# Each layer's matrices, (rows, columns): qkv and output, gate and up, down.
MATRICES = ((6144, 4096), (4096, 4096), (24_576, 4096), (4096, 12_288))
QUANTISED = LAYERS * sum(rows * columns for rows, columns in MATRICES)
ROWS = LAYERS * sum(rows for rows, _ in MATRICES)
# As the config.json of a checkpoint has them.
CONFIG = SimpleNamespace(**yaml.safe_load((DATA / "quantization.yaml").read_text("utf-8")))
TENSOR_FP8 = {**CONFIG.BLOCK_FP8, "activation_scheme": "static", "weight_block_size": None}
# The first keeps all of the tower and its mergers as they are.
UNTOUCHED = CONFIG.BLOCK_FP8["modules_to_not_convert"][1:]


@dataclass(frozen=True, slots=True)
class Stored:
    """Bits of a weight, bytes of all scales, and `slack`: norms and up to 1 MiB for each block."""

    bits: int
    scale_bytes: float
    slack: float = 0.01

    @property
    def nbytes(self) -> float:
        return QUANTISED * self.bits / 8 + self.scale_bytes


# One scale: for a tensor, a row in float32, a block of 128 × 128 in float32, a group in bfloat16.
BY_TENSOR = Stored(8, 0)
BY_ROW = Stored(8, ROWS * 4)
BY_BLOCK = Stored(8, QUANTISED / 128**2 * 4)
GROUPS_OF_8 = Stored(8, QUANTISED / 128 * 2)
ROWS_OF_8 = Stored(8, ROWS * 2)
GROUPS_OF_4 = Stored(4, QUANTISED / 128 * 2)
# Zero points beside: of four bits for Marlin, in bfloat16 for Machete, which is Hopper's. While it
# loads, vLLM lets no block above 20 MB be split, and there most come out of larger ones.
ZERO_POINTS = Stored(4, QUANTISED / 128 * 2.5)
WIDE_ZERO_POINTS = Stored(4, QUANTISED / 128 * 4, slack=0.07)
# DeepGEMM's on the largest Blackwells: a byte for each row of a block.
PACKED_BLOCKS = Stored(8, QUANTISED / 128)
# A scale of a byte for each 16, or 32.
SIXTEENS = Stored(4, QUANTISED / 16)
FOURS = Stored(4, QUANTISED / 32, slack=0.012)
EIGHTS = Stored(8, QUANTISED / 32)

IN_FP8 = ((CONFIG.BLOCK_FP8, BY_BLOCK), (TENSOR_FP8, BY_TENSOR), (CONFIG.CHANNEL_FP8, BY_ROW))
IN_MXFP = (
    *((config, FOURS) for config in (CONFIG.MXFP4, CONFIG.MXFP4_A16)),
    *((config, EIGHTS) for config in (CONFIG.MXFP8, CONFIG.PLAIN_MXFP8, CONFIG.MODELOPT_MXFP8)),
)
METHODS = {
    "H100-80G": [
        *IN_FP8,
        (CONFIG.CHANNEL_INT8, BY_ROW),
        (CONFIG.W4A16, GROUPS_OF_4),
        (CONFIG.AWQ, WIDE_ZERO_POINTS),
        (CONFIG.GPTQ, ZERO_POINTS),
        (CONFIG.AUTO_ROUND, ZERO_POINTS),
        (CONFIG.NVFP4, SIXTEENS),
        *IN_MXFP,
    ],
    # Without FP8 in hardware Marlin takes groups of a column, in the model's own dtype.
    "A100-80G": [
        (CONFIG.BLOCK_FP8, GROUPS_OF_8),
        (TENSOR_FP8, ROWS_OF_8),
        (CONFIG.CHANNEL_FP8, ROWS_OF_8),
        (CONFIG.CHANNEL_INT8, BY_ROW),
        (CONFIG.W4A16, GROUPS_OF_4),
        (CONFIG.AWQ, ZERO_POINTS),
        (CONFIG.GPTQ, GROUPS_OF_4),
        (CONFIG.NVFP4, SIXTEENS),
        (CONFIG.MODELOPT_NVFP4, SIXTEENS),
    ],
    # FlashInfer's products.
    "RTX-5090": [
        *IN_FP8,
        (CONFIG.W4A16, GROUPS_OF_4),
        (CONFIG.NVFP4, SIXTEENS),
        (CONFIG.MODELOPT_NVFP4, SIXTEENS),
        *IN_MXFP,
    ],
    "B200": [(CONFIG.BLOCK_FP8, PACKED_BLOCKS)],
}
_HUMMING = since(VLLM_0_33, "humming takes NVFP4 on Hopper, and is not rehearsed")
EACH = [
    pytest.param("H100-80G", None, Stored(16, 0), id="bfloat16"),
    *(
        pytest.param(
            gpu,
            config,
            stored,
            id=f"{gpu}-{number}-{config['quant_method']}",
            marks=_HUMMING if (gpu, config) == ("H100-80G", CONFIG.NVFP4) else (),
        )
        for gpu, methods in METHODS.items()
        for number, (config, stored) in enumerate(methods)
    ),
]


def rehearsed(theatre: Theatre, config, layers=FEW, model=MODEL, **more: Any) -> RehearsedMemory:
    cut = {"text_config": {"num_hidden_layers": layers}, "vision_config": {"depth": 6}}
    quantised = {} if config is None else {"quantization_config": config}
    return theatre.rehearse(model, **ARGS, **more, hf_overrides={**cut, **quantised})


def bytes_of_layers(theatre: Theatre, config, depths=DEPTHS, model=MODEL, **args: Any) -> int:
    """What the layers take that the deeper of two loads has more."""
    few, more = (rehearsed(theatre, config, layers, model, **args) for layers in depths)
    assert more.problem == ""
    assert more.kv_cache_tokens
    return more.weights_bytes - few.weights_bytes


@pytest.mark.parametrize(("gpu", "config", "stored"), EACH)
def test_each_method_takes_its_bits_and_its_scales(theatres, gpu: str, config, stored) -> None:
    taken = bytes_of_layers(theatres(gpu), config)
    assert taken == pytest.approx(stored.nbytes, rel=stored.slack)


def test_weights_that_are_quantised_while_they_load_take_as_little(h100: Theatre) -> None:
    """One scale for each tensor; the tower is quantised too, as deep in both."""
    taken = bytes_of_layers(h100, None, quantization="fp8")
    assert taken == pytest.approx(BY_TENSOR.nbytes, rel=BY_TENSOR.slack)


def test_a_published_checkpoint_takes_what_its_server_printed(h100: Theatre) -> None:
    """28.95 GiB with its head, of a server of Qwen3.8-27B-FP8 (public file 63117739030)."""
    found = h100.rehearse(
        "Qwen/Qwen3.8-27B-FP8",
        max_model_len=131_072,
        max_num_seqs=4,
        speculative_config={"method": "mtp", "num_speculative_tokens": 3},
    )
    assert found.weights_bytes / 2**30 == pytest.approx(28.95, abs=0.1)


def rehearsed_as(theatre: Theatre, build: Geometry | None, folder: Path) -> RehearsedMemory:
    arguments = {"model": str(materialise(some(build), folder)), **ARGS, "enforce_eager": True}
    return theatre.host.ask(Rehearse(arguments, theatre.gpu), "rehearsing")


@pytest.mark.parametrize(
    ("build", "gib"),
    [("Qwen/Qwen2.5-VL-7B-Instruct-AWQ", 6.67), ("Qwen/Qwen3-VL-8B-Instruct-FP8", 10.12)],
)
def test_an_assumed_build_takes_what_the_published_one_takes(
    theatres, tmp_path, build, gib
) -> None:
    theatre = theatres("RTX-3090")
    known = rehearsed_as(theatre, find_model(build), tmp_path / "known")
    assumed = rehearsed_as(theatre, assume_build(build), tmp_path / "assumed")
    assert known.weights_bytes / 2**30 == pytest.approx(gib, abs=0.01)
    assert assumed.weights_bytes == pytest.approx(known.weights_bytes, rel=0.01)
    assert assumed.kv_cache_bytes == pytest.approx(known.kv_cache_bytes, rel=0.01)


@pytest.mark.parametrize("gpu", ["A100-80G", "RTX-5090"])
def test_an_8_bit_cache_is_served_by_flashinfer_beside_hopper(theatres, gpu: str) -> None:
    """A hybrid's prompt runs its attention; this checkpoint has no scales of its own."""
    theatre = theatres(gpu)
    fp8 = {**CONFIG.BLOCK_FP8, "modules_to_not_convert": ["lm_head", "model.visual"]}
    found = theatre.rehearse(
        "Qwen/Qwen3.5-0.8B",
        **ARGS,
        kv_cache_dtype="fp8",
        speculative_config={"method": "mtp", "num_speculative_tokens": 3},
        hf_overrides={"quantization_config": fp8},
    )
    assert "FLASHINFER" in found.attention
    assert found.prefill is not None
    # Six attention layers and the head's: 2 heads of 256 for keys and for values, a byte each.
    assert found.kv_bytes_per_token == 7 * 2 * 2 * 256


@pytest.mark.parametrize("method", ["bitsandbytes", "exl3"])
def test_a_method_that_this_vllm_lacks_is_answered_with_what_works(h100, method: str) -> None:
    with pytest.raises(EngineError) as caught:
        rehearsed(h100, {"quant_method": method}, model="Qwen/Qwen2.5-VL-7B-Instruct")
    assert caught.value.message == f"the installed vLLM has no quantization method {method}"
    # The bundled twin, and what vLLM's own list has.
    assert caught.value.hint == (
        "--model Qwen/Qwen2.5-VL-7B-Instruct-AWQ, or a checkpoint in awq, gptq, fp8, "
        "compressed-tensors, modelopt_fp4, mxfp4, mxfp8, or an unquantized one with "
        "--quantization fp8"
    )


def test_a_product_that_nobody_described_is_refused_by_its_name() -> None:
    ledger: Any = SimpleNamespace(module="model.layers.0.mlp")
    packages = StubPackages(("flashinfer",), {}, ledger, ALTERNATIVES_HINT)
    product = StubModule("flashinfer.gemm.mm_bf16", packages)
    with pytest.raises(NoFakeImplementation) as caught:
        product(1, 2)
    assert str(caught.value) == (
        "flashinfer.gemm.mm_bf16 has no fake implementation (in model.layers.0.mlp): "
        "try another --linear-backend, --moe-backend or --attention-backend"
    )


# As nvidia's Qwen3.6 have it: one method for attention, another for the rest and the head.
MIXED: dict[str, Any] = {
    "quant_method": "modelopt",
    "quant_algo": "MIXED_PRECISION",
    "ignore": ["mtp*"],
    "quantized_layers": {
        "lm_head": {"quant_algo": "W4A16_NVFP4", "group_size": 16},
        **{
            f"model.language_model.layers.{layer}.{part}": algorithm
            for layer in range(FEW + LAYERS)
            for part, algorithm in [
                *((f"self_attn.{one}_proj", {"quant_algo": "FP8"}) for one in "qkvo"),
                *(
                    (f"mlp.{one}_proj", {"quant_algo": "W4A16_NVFP4", "group_size": 16})
                    for one in ("gate", "up", "down")
                ),
            ]
        },
    },
}


@pytest.mark.parametrize("gpu", ["RTX-A6000", "RTX-5090", "B200"])
def test_a_checkpoint_may_have_a_method_for_each_layer(theatres, gpu: str) -> None:
    sizes = [rows * columns for rows, columns in MATRICES]
    attention, rest = LAYERS * sum(sizes[:2]), LAYERS * sum(sizes[2:])
    taken = bytes_of_layers(theatres(gpu), MIXED)
    assert taken == pytest.approx(attention + rest * (1 / 2 + 1 / 16), rel=0.01)


EXPERTS = "Qwen/Qwen3-VL-30B-A3B-Instruct"
# A layer's: 128 experts of three matrices, queries with keys and values, output.
QUANTISED_OF_EXPERTS = 2048 * (128 * 3 * 768 + 5120 + 4096)
NVFP4_EXPERTS = {**CONFIG.NVFP4, "ignore": ["lm_head", "re:.*visual.*", "re:.*mlp.gate$"]}
FP8_EXPERTS = {**CONFIG.BLOCK_FP8, "modules_to_not_convert": UNTOUCHED}


@pytest.mark.parametrize(
    ("gpu", "config", "bits"),
    [
        ("H100-80G", FP8_EXPERTS, 8),
        ("A100-80G", {**CONFIG.W4A16, "ignore": ["re:.*visual.*", "re:.*mlp.gate$"]}, 4 + 16 / 128),
        ("A100-80G", FP8_EXPERTS, 8 + 16 / 128),
        (
            "A100-80G",
            {**CONFIG.MODELOPT_NVFP4, "ignore": ["model.visual*", "*mlp.gate"]},
            4 + 8 / 16,
        ),
        ("RTX-5090", {**CONFIG.MXFP4, "ignore": ["re:.*visual.*", "re:.*mlp.gate$"]}, 4 + 8 / 32),
        (
            "RTX-5090",
            {**CONFIG.PLAIN_MXFP8, "ignored_layers": ["model.visual*", "*mlp.gate"]},
            8 + 8 / 32,
        ),
        ("RTX-5090", None, 16),
        ("B200", None, 16),
        ("B200", FP8_EXPERTS, 8),
        ("B200", NVFP4_EXPERTS, 4 + 8 / 16),
    ],
    ids=[
        *("blocks of FP8", "four bits by Marlin", "FP8 by Marlin", "NVFP4 by Marlin"),
        *("MXFP4 by Marlin", "MXFP8", "FlashInfer's CUTLASS", "TensorRT-LLM's"),
        *("TensorRT-LLM's, FP8", "TensorRT-LLM's, NVFP4"),
    ],
)
def test_experts_are_quantised_as_other_layers_are(theatres, gpu: str, config, bits: float) -> None:
    taken = bytes_of_layers(theatres(gpu), config, (1, 3), EXPERTS)
    assert taken == pytest.approx(2 * QUANTISED_OF_EXPERTS * bits / 8, rel=0.02)


@pytest.mark.parametrize("backend", ["cutlass", "flashinfer_cutlass"])
def test_experts_in_nvfp4_run_by_cutlass_where_it_is_asked_for(theatres, backend: str) -> None:
    taken = bytes_of_layers(
        theatres("RTX-5090"), NVFP4_EXPERTS, (1, 3), EXPERTS, moe_backend=backend
    )
    assert taken == pytest.approx(2 * QUANTISED_OF_EXPERTS * (4 + 8 / 16) / 8, rel=0.02)


def test_experts_behind_a_router_in_float32_run_on_the_largest_blackwells(theatres) -> None:
    """Its kernel needs the Python package of CUTLASS. Layer 0 has no experts."""
    found = rehearsed(theatres("B200"), None, 2, "zai-org/GLM-4.5V")
    assert found.problem == ""
    # 128 experts of three matrices, in 16 bits.
    assert found.weights_bytes > 128 * 3 * 4096 * 1408 * 2
