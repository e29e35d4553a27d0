"""The allocations of FlashInfer (0.6.16), DeepGEMM and Humming, parts of vLLM's CUDA builds.

Other functions of these packages are stubs: vLLM finds them and may choose them, but a call raises
NoFakeImplementation with the function's name.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from mmcalib.child.rehearsal.device import NoFakeImplementation
from mmcalib.child.rehearsal.ledger import Ledger
from mmcalib.releases import targets
from mmcalib.releases.targets import replace

if TYPE_CHECKING:
    from mmcalib.child.rehearsal.startup import ImaginaryMachine


def top_k_top_p_sampling_from_logits(
    logits: torch.Tensor, top_k: Any, top_p: Any, *args: Any, **kwargs: Any
) -> torch.Tensor:
    """Mask logits by top-k, then sample by top-p (flashinfer/sampling.py): two float32 copies."""
    masked = torch.empty_like(logits, dtype=torch.float32)
    return sampling_from_probs(torch.empty_like(masked))


def sampling_from_probs(probs: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """Sample by rejection, without sorting: only the result takes memory."""
    return torch.empty(probs.shape[0], dtype=torch.int32, device=probs.device)


def chunk_gated_delta_rule(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *args: Any,
    initial_state: torch.Tensor,
    output_final_state: bool = False,
    **kwargs: Any,
) -> Any:
    """Run a prompt through a recurrent layer: its output, and the state of each request."""
    heads = max(q.shape[1], v.shape[1])
    output = torch.empty(q.shape[0], heads, v.shape[2], dtype=q.dtype, device=q.device)
    if not output_final_state:
        return output
    return output, torch.empty_like(initial_state, dtype=torch.float32)


# flashinfer/prefill.py and decode.py: `_int_workspace_buffer` of each wrapper.
_INT_WORKSPACE_BYTES = 8 << 20


class PagedAttention:
    """A paged cache's wrapper where FlashAttention fails (8-bit KV before Hopper, Blackwell)."""

    # vLLM then plans each step completely, as it always does for the first step.
    is_cuda_graph_enabled = False

    def __init__(self, workspace: torch.Tensor, *args: Any, **kwargs: Any) -> None:
        self._workspace = workspace
        self._int_workspace = torch.empty(
            _INT_WORKSPACE_BYTES, dtype=torch.uint8, device=workspace.device
        )

    def plan(
        self,
        *args: Any,
        causal: bool = False,
        sm_scale: float | None = None,
        window_left: int = -1,
        logits_soft_cap: float | None = None,
        **kwargs: Any,
    ) -> None:
        # A backend reads them back.
        self._causal, self._sm_scale, self._window_left = causal, sm_scale, window_left
        self._logits_soft_cap = logits_soft_cap or 0.0

    def run(
        self,
        q: torch.Tensor,
        *args: Any,
        out: torch.Tensor | None = None,
        return_lse: bool = False,
        **kwargs: Any,
    ) -> Any:
        """Return an output like `q`, and float32 log-sum-exp of (tokens, heads)."""
        if out is None:
            out = torch.empty_like(q)
        lse = q.new_empty(q.shape[:2], dtype=torch.float32) if return_lse else None
        return (out, lse) if return_lse else out


def get_seq_lens(indptr: torch.Tensor, last_page_len: torch.Tensor, page_size: int) -> torch.Tensor:
    """Return tokens per request: all pages but one, and those on the last (flashinfer/page.py)."""
    pages = indptr[1:] - indptr[:-1]
    return torch.clamp(pages - 1, min=0) * page_size + last_page_len


def run_into(query: torch.Tensor, *args: Any, out: Any = None, **kwargs: Any) -> Any:
    """Stand in for TensorRT-LLM's kernels, XQA, and norms: the output is like the input."""
    return torch.empty_like(query) if out is None else out


def get_device_sm_count(device: torch.device) -> int:
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def get_trtllm_gen_multi_ctas_kv_counter_bytes(
    batch_size: int, num_qo_heads: int, sm_count: int
) -> int:
    """Return bytes of 4-byte counters for all heads, rounded to 8 (flashinfer/utils.py)."""
    return -(-max(batch_size * num_qo_heads, sm_count) // 8) * 8 * 4


def fp8_blockscale_gemm_sm90(
    input: torch.Tensor,  # noqa: A002 - vLLM names it
    weight: torch.Tensor,
    input_scale: torch.Tensor | None = None,
    weight_scale: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Multiply (m, k) by (n, k); only for few rows on Hopper."""
    return _product(input, (input.shape[0], weight.shape[0]), out_dtype or torch.bfloat16, out)


def _product(
    like: torch.Tensor, shape: Sequence[int], dtype: torch.dtype, out: torch.Tensor | None
) -> torch.Tensor:
    return like.new_empty(tuple(shape), dtype=dtype) if out is None else out


def cutlass_fused_moe(
    input: torch.Tensor,  # noqa: A002 - vLLM names it
    token_selected_experts: torch.Tensor,
    token_final_scales: torch.Tensor,
    fc1_expert_weights: torch.Tensor,
    fc2_expert_weights: torch.Tensor,
    output_dtype: torch.dtype,
    quant_scales: Sequence[torch.Tensor] = (),
    *,
    output: torch.Tensor | None = None,
    use_deepseek_fp8_block_scale: bool = False,
    use_mxfp8_act_scaling: bool = False,
    **kwargs: Any,
) -> list[torch.Tensor]:
    """Run tokens through their experts: (tokens, hidden), with one workspace freed at the end.

    getWorkspaceDeviceBufferSizes of cutlass_fused_moe_kernels.cuh, without its parts of some KiB
    for each expert. Weights of four bits arrive as int64: 16 numbers each.
    """
    if use_deepseek_fp8_block_scale:
        raise NoFakeImplementation("cutlass_fused_moe of FP8 blocks", "", ALTERNATIVES_HINT)
    tokens, experts = input.shape[0], fc2_expert_weights.shape[0]
    hidden, inner = fc2_expert_weights.shape[1:]
    packed = fc2_expert_weights.dtype == torch.int64
    inner *= 16 if packed else 1
    rows = tokens * token_selected_experts.shape[1]
    widened = rows * fc1_expert_weights.shape[1] * output_dtype.itemsize
    result = rows * hidden * output_dtype.itemsize
    half_bytes = 1 if packed and not use_mxfp8_act_scaling else 2 * input.dtype.itemsize
    inputs = max(rows * max(hidden, inner) * half_bytes // 2, result)
    # Each expert's rows are padded to 128 where activations have scales.
    scaled = 32 if use_mxfp8_act_scaling else 16
    scales = (rows + 127 * experts) * max(hidden, inner) // scaled if packed else 0
    # Positions of each row and of its token, a factor for it, and its place in each expert.
    places = 4 * (4 * rows + experts * tokens)
    output = _product(input, (tokens, hidden), output_dtype, output)
    size = inputs + max(widened, result) + scales + places
    torch.empty(size, dtype=torch.uint8, device=input.device)
    return [output]


def trtllm_moe(
    *,
    hidden_states: torch.Tensor,
    num_experts: int,
    top_k: int,
    intermediate_size: int,
    local_num_experts: int,
    fp8_quantization_type: str = "",
    per_token_scale: torch.Tensor | None = None,
    do_finalize: bool = True,
    output: torch.Tensor | None = None,
    **kwargs: Any,
) -> torch.Tensor:
    """Run tokens through their experts: (tokens, hidden), with the buffers of both products.

    The launchers of trtllm_fused_moe_kernel_launcher.cu, without workspaces that only its compiled
    kernels know. Untuned, as the profile runs it, a tile has half the rows of a mean expert.
    """
    if not do_finalize:
        raise NoFakeImplementation("trtllm_moe without its last sum", "", ALTERNATIVES_HINT)
    tokens, width = hidden_states.shape
    rows, dtype = tokens * top_k, hidden_states.dtype
    packed = dtype == torch.uint8
    hidden, scaled = width * (2 if packed else 1), 16 if packed else 32
    mean = 1 << max(0, -(-rows // local_num_experts) - 1).bit_length()
    tile = max(8, min(mean, 128) // 2)
    padded = min(num_experts, rows) * tile + max(0, rows - num_experts) // tile * tile
    of_row = intermediate_size // (2 if packed else 1)
    if dtype == torch.bfloat16:
        of_row *= 2
    elif fp8_quantization_type.endswith("DeepSeekFp8"):
        # Both halves and their product, with four bytes of scales for each 128.
        of_row = 3 * (intermediate_size + 4 * intermediate_size // 128)
    else:
        of_row += intermediate_size // scaled
    if per_token_scale is not None:
        of_row += 2 * intermediate_size
    output = _product(hidden_states, (tokens, hidden), torch.bfloat16, output)
    torch.empty(padded * (of_row + 2 * hidden), dtype=torch.uint8, device=hidden_states.device)
    return output


_TRTLLM_EXPERTS = (
    *("trtllm_bf16_moe", "trtllm_fp8_per_tensor_scale_moe", "trtllm_fp8_block_scale_moe"),
    *("trtllm_fp8_block_scale_routed_moe", "trtllm_fp4_block_scale_moe"),
    "trtllm_fp4_block_scale_routed_moe",
)


def _rows_in_order(weight: torch.Tensor, *args: Any) -> torch.Tensor:
    """Stand in for the order of a weight's rows: their indices, on the host."""
    return torch.arange(weight.shape[0])


def _cached_rows(cache: Any, weight: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """Stand in for the order of a weight's rows: their indices, on its device."""
    return torch.arange(weight.shape[0], device=weight.device)


def block_scale_interleave(scales: torch.Tensor) -> torch.Tensor:
    """Return scales in the layout of tensor cores, flat."""
    width = scales.shape[-1]
    return _scales(scales, scales.numel() // width, width).flatten()


def _quantize_to_fp4(block: int, a: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """Return two numbers per byte, and a scale for each block (flashinfer/quantization)."""
    rows, width = a.numel() // a.shape[-1], a.shape[-1]
    return a.new_empty((rows, width // 2), dtype=torch.uint8), _scales(a, rows, width // block)


def prepare_bf16_fp4_weights(
    b: torch.Tensor, b_descale: torch.Tensor, alpha: torch.Tensor | None = None, **kwargs: Any
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Pack (n, k/2) bytes into int32 of (k/16, 2 n), with a scale for 16 numbers."""
    rows, width = b.shape
    packed = b.new_empty((width // 8, 2 * rows), dtype=torch.int32)
    return packed, b.new_empty((width // 8, rows), dtype=torch.uint8), alpha


def mm_bf16_fp4(a: torch.Tensor, b: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """Multiply (m, k) by weights so packed."""
    return a.new_empty((a.shape[0], b.shape[1] // 2))


def mxfp8_quantize(
    a: torch.Tensor, is_sf_swizzled_layout: bool = True, *args: Any, **kwargs: Any
) -> Any:
    """Return a byte per number, and one row with a scale per 32 numbers."""
    rows, width = a.numel() // a.shape[-1], a.shape[-1]
    scales = _scales(a, rows, width // 32)
    if not is_sf_swizzled_layout:
        scales = a.new_empty((rows, width // 32), dtype=torch.uint8)
    return a.new_empty(a.shape, dtype=torch.float8_e4m3fn), scales.flatten()


def _scales(like: torch.Tensor, rows: int, width: int) -> torch.Tensor:
    """Return scales in the layout of tensor cores: padded to tiles of 128 by 4."""
    return like.new_empty((-(-rows // 128) * 128, -(-width // 4) * 4), dtype=torch.uint8)


# gemm/gemm_base.py, DEFAULT_WORKSPACE_SIZE. `_get_cache_buf` of utils.py keeps one for each name.
WORKSPACE_BYTES = 32 << 20


class Products:
    """Products of quantised weights (gemm/gemm_base.py); each kind keeps one workspace."""

    def __init__(self) -> None:
        self.workspaces: dict[str, torch.Tensor] = {}

    def multiply(
        self, kind: str, a: torch.Tensor, b: torch.Tensor, *others: Any, **named: Any
    ) -> Any:
        """Multiply (…, m, k) by (…, k, n), FP4 with two numbers per byte; vLLM names the dtype."""
        if kind not in self.workspaces:
            self.workspaces[kind] = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=a.device)
        (dtype,) = (one for one in (*others, *named.values()) if isinstance(one, torch.dtype))
        return a.new_empty((*a.shape[:-1], b.shape[-1]), dtype=dtype)

    def simulated_functions(self) -> Mapping[str, Any]:
        """Return the simulated functions and classes; several of FlashInfer's modules have each."""
        kinds = ("mm_fp4", "mm_mxfp8", "bmm_fp8")
        paged = ("BatchPrefillWithPaged", "BatchPrefillWithRagged", "BatchDecodeWithPaged")
        return {
            **{kind: partial(self.multiply, kind) for kind in kinds},
            "fp8_blockscale_gemm_sm90": fp8_blockscale_gemm_sm90,
            "prepare_bf16_fp4_weights": prepare_bf16_fp4_weights,
            "mm_bf16_fp4": mm_bf16_fp4,
            "fp4_quantize": partial(_quantize_to_fp4, 16),
            "nvfp4_quantize": partial(_quantize_to_fp4, 16),
            "mxfp4_quantize": partial(_quantize_to_fp4, 32),
            "mxfp8_quantize": mxfp8_quantize,
            "block_scale_interleave": block_scale_interleave,
            "nvfp4_block_scale_interleave": block_scale_interleave,
            **dict.fromkeys(_TRTLLM_EXPERTS, trtllm_moe),
            "cutlass_fused_moe": cutlass_fused_moe,
            "_maybe_get_cached_w3_w1_permute_indices": _cached_rows,
            "get_w2_permute_indices_with_cache": _cached_rows,
            "get_reorder_rows_for_gated_act_gemm_row_indices": _rows_in_order,
            "get_shuffle_matrix_a_row_indices": _rows_in_order,
            **{f"{kind}KVCacheWrapper": PagedAttention for kind in paged},
            "get_seq_lens": get_seq_lens,
            "fast_decode_plan": PagedAttention.plan,
            "trtllm_batch_decode_with_kv_cache": run_into,
            "xqa_batch_decode_with_kv_cache": run_into,
            "trtllm_batch_context_with_kv_cache": run_into,
            "get_device_sm_count": get_device_sm_count,
            "get_trtllm_gen_multi_ctas_kv_counter_bytes": (
                get_trtllm_gen_multi_ctas_kv_counter_bytes
            ),
            "top_k_top_p_sampling_from_logits": top_k_top_p_sampling_from_logits,
            "top_p_sampling_from_probs": sampling_from_probs,
            "top_k_sampling_from_probs": sampling_from_probs,
            "gemma_rmsnorm": run_into,
            "gemma_fused_add_rmsnorm": lambda *args: None,
            "chunk_gated_delta_rule": chunk_gated_delta_rule,
            "check_cuda_arch": lambda: None,
        }


class _StubClass(type):
    """A stub class; any public name is a member, as if it were an enum of texts."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        text = f"{cls.__name__}.{name}"
        return Enum(cls.__name__, {name: text}, type=str)[name]  # type: ignore[index] # it is one


class StubModule(types.ModuleType):
    """A module, or a function that raises NoFakeImplementation with its name when it is called.

    Its public names are empty classes, or such modules again.
    """

    def __init__(self, name: str, packages: StubPackages) -> None:
        super().__init__(name)
        self.__dict__.update(packages.simulated, _packages=packages)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        if name[0].isupper():
            stub: Any = _StubClass(name, (), {"__init__": lambda self, *args, **kwargs: None})
        else:
            stub = importlib.import_module(f"{self.__name__}.{name}")
        setattr(self, name, stub)
        return stub

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        packages = self._packages
        raise NoFakeImplementation(self.__name__, packages.ledger.module, packages.way_out)


class StubPackages:
    """Finds stub modules for these packages before the real ones, first in `sys.meta_path`.

    Each has all `simulated` functions. `way_out` names options that avoid the package.
    """

    def __init__(
        self, names: Sequence[str], simulated: Mapping[str, Any], ledger: Ledger, way_out: str
    ) -> None:
        self.simulated, self.ledger, self.way_out = simulated, ledger, way_out
        self._names = frozenset(names)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name.partition(".")[0] not in self._names:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type]

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return StubModule(spec.name, self)

    def exec_module(self, module: types.ModuleType) -> None:
        # The lowest that vLLM 0.16 to 0.22 samples with (v1/sample/ops/topk_topp_sampler.py).
        module.__dict__.setdefault("__version__", "0.2.3")


_PACKAGES = ("flashinfer", "flashinfer_cubin", "flashinfer_jit_cache")
ALTERNATIVES_HINT = "try another --linear-backend, --moe-backend or --attention-backend"


def install_flashinfer(machine: ImaginaryMachine) -> None:
    """Replace FlashInfer; call it before vLLM looks for the package."""
    simulated = machine.products.simulated_functions()
    sys.meta_path.insert(0, StubPackages(_PACKAGES, simulated, machine.ledger, ALTERNATIVES_HINT))


def install_humming(machine: ImaginaryMachine) -> None:
    """Refuse vLLM 0.33's kernels for 4-bit floats on Hopper, whose weight layout is unknown."""

    def refuse() -> Any:
        raise NoFakeImplementation("humming", machine.ledger.module, ALTERNATIVES_HINT)

    replace(targets.HUMMING_DEVICE, refuse)


# Alignment of rows for a TMA descriptor.
_TMA_BYTES = 16
_BLOCK = 128
# kLegacyMKAlignmentForContiguousLayout: rows of one expert begin at multiples of it.
_ALIGNMENT_ROWS = 128
_WAY_OUT = "set VLLM_USE_DEEP_GEMM=0"
# They write to an argument, or set something.
_WITHOUT_RESULTS = (
    *("fp8_gemm_nt", "m_grouped_fp8_gemm_nt_contiguous", "m_grouped_fp8_gemm_nt_masked"),
    *("m_grouped_fp8_fp4_gemm_nt_contiguous", "fp8_m_grouped_gemm_nt_masked"),
    *("set_num_sms", "set_pdl"),
)


def install_deep_gemm(machine: ImaginaryMachine) -> None:
    """Replace DeepGEMM before vLLM looks for it; FP8 scales as in csrc/apis/layout.hpp."""
    if not targets.HAS_DEEP_GEMM:
        return
    major = machine.gpu.capability[0]

    def do_nothing(*args: Any, **kwargs: Any) -> None:
        return None

    def required_layout(
        sf: torch.Tensor,
        mn: int,
        k: int,
        recipe: tuple[int, ...] | None = None,
        num_groups: int | None = None,
        is_sfa: bool | None = None,
        disable_ue8m0_cast: bool = False,
        **kwargs: Any,
    ) -> torch.Tensor:
        """Return scales of `mn` rows and `k` columns in this GPU's layout."""
        if sf.dtype != torch.float32:
            return sf
        if major != 9 and not disable_ue8m0_cast:
            return pack_scales(sf, mn)
        by_block = recipe is not None and recipe[0 if is_sfa else -2] == _BLOCK
        return sf if by_block else align_scales(sf)

    described: dict[str, Callable[..., Any]] = {
        **dict.fromkeys(_WITHOUT_RESULTS, do_nothing),
        "transform_sf_into_required_layout": required_layout,
        "get_mn_major_tma_aligned_tensor": align_scales,
        "get_mn_major_tma_aligned_packed_ue8m0_tensor": pack_scales,
        "get_mk_alignment_for_contiguous_layout": lambda: _ALIGNMENT_ROWS,
    }
    # On the largest Blackwells they depend on the number of rows, by a table not read here.
    if major != 10:
        described["get_theoretical_mk_alignment_for_contiguous_layout"] = lambda *rows: (
            _ALIGNMENT_ROWS
        )
        described["set_mk_alignment_for_contiguous_layout"] = do_nothing
    sys.meta_path.insert(0, StubPackages(("deep_gemm",), described, machine.ledger, _WAY_OUT))


def align_scales(sf: torch.Tensor) -> torch.Tensor:
    """Return scales by column, each column padded to a whole number of TMA units."""
    return _by_column(sf, sf.shape[-2], sf.shape[-1], sf.dtype)


def pack_scales(sf: torch.Tensor, rows: int | None = None) -> torch.Tensor:
    """Return scales with four columns' exponents per int32, for `rows` (default: those of `sf`)."""
    rows = sf.shape[-2] if rows is None else rows
    return _by_column(sf, rows, -(-sf.shape[-1] // 4), torch.int32)


def _by_column(like: torch.Tensor, rows: int, columns: int, dtype: torch.dtype) -> torch.Tensor:
    unit = _TMA_BYTES // dtype.itemsize
    height = -(-rows // unit) * unit
    before = tuple(like.shape[:-2])
    strides = (*(height * columns for _ in before), 1, height)
    return torch.empty_strided((*before, rows, columns), strides, dtype=dtype, device=like.device)
