"""FlashInfer, DeepGEMM and Humming, which CUDA builds of vLLM bring, by what they allocate.

The rest of these packages is hollow: vLLM finds it, and may choose it, but what it then calls is
refused by name. FlashInfer is as of 0.6.16.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from mmcalib.child.rehearsal.device import NoFakeImplementation
from mmcalib.releases import targets
from mmcalib.releases.targets import replace

if TYPE_CHECKING:
    from mmcalib.child.rehearsal.startup import Stage


def top_k_top_p_sampling_from_logits(
    logits: torch.Tensor, top_k: Any, top_p: Any, *args: Any, **kwargs: Any
) -> torch.Tensor:
    """Masks logits by top-k, then samples by top-p (flashinfer/sampling.py): two float32 copies."""
    masked = torch.empty_like(logits, dtype=torch.float32)
    return sampling_from_probs(torch.empty_like(masked))


def sampling_from_probs(probs: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """Samples by rejection, without sorting: takes only its result."""
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
    """A prompt through a recurrent layer: what comes out of it, and the state of each request."""
    heads = max(q.shape[1], v.shape[1])
    output = torch.empty(q.shape[0], heads, v.shape[2], dtype=q.dtype, device=q.device)
    if not output_final_state:
        return output
    return output, torch.empty_like(initial_state, dtype=torch.float32)


# flashinfer/prefill.py and decode.py: `_int_workspace_buffer` of each wrapper.
_INT_WORKSPACE_BYTES = 8 << 20


class PagedAttention:
    """A wrapper for prefill or decode over a paged cache. vLLM takes it where FlashAttention does
    not go (an 8-bit KV cache before Hopper, Blackwell); a backend reads back what it planned with.
    """

    # So each step is planned as a whole, as the first always is.
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
        """Output like `q`, and float32 log-sum-exp of (tokens, heads)."""
        if out is None:
            out = torch.empty_like(q)
        lse = q.new_empty(q.shape[:2], dtype=torch.float32) if return_lse else None
        return (out, lse) if return_lse else out


def get_seq_lens(indptr: torch.Tensor, last_page_len: torch.Tensor, page_size: int) -> torch.Tensor:
    """Tokens of each request: whole pages but one, and what is on the last (flashinfer/page.py)."""
    pages = indptr[1:] - indptr[:-1]
    return torch.clamp(pages - 1, min=0) * page_size + last_page_len


def run_into(query: torch.Tensor, *args: Any, out: Any = None, **kwargs: Any) -> Any:
    """TensorRT-LLM's kernels and XQA, a function each for prefill and decode."""
    return torch.empty_like(query) if out is None else out


def get_device_sm_count(device: torch.device) -> int:
    """Of the imaginary GPU."""
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def get_trtllm_gen_multi_ctas_kv_counter_bytes(
    batch_size: int, num_qo_heads: int, sm_count: int
) -> int:
    """Counters of four bytes, as many as heads of a batch, in eights (flashinfer/utils.py)."""
    return -(-max(batch_size * num_qo_heads, sm_count) // 8) * 8 * 4


def fp8_blockscale_gemm_sm90(
    input: torch.Tensor,  # noqa: A002 - vLLM names it
    weight: torch.Tensor,
    input_scale: torch.Tensor | None = None,
    weight_scale: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """(m, k) by (n, k): for few rows on Hopper alone."""
    return _product(input, (input.shape[0], weight.shape[0]), out_dtype or torch.bfloat16, out)


def _product(
    like: torch.Tensor, shape: Sequence[int], dtype: torch.dtype, out: torch.Tensor | None
) -> torch.Tensor:
    return like.new_empty(tuple(shape), dtype=dtype) if out is None else out


def _quantize_to_fp4(block: int, a: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """Two numbers to a byte, and a scale for each block (flashinfer/quantization)."""
    rows, width = a.numel() // a.shape[-1], a.shape[-1]
    return a.new_empty((rows, width // 2), dtype=torch.uint8), _scales(a, rows, width // block)


def mxfp8_quantize(
    a: torch.Tensor, is_sf_swizzled_layout: bool = True, *args: Any, **kwargs: Any
) -> Any:
    """A byte for each number, and in one row a scale for each 32."""
    rows, width = a.numel() // a.shape[-1], a.shape[-1]
    scales = _scales(a, rows, width // 32)
    if not is_sf_swizzled_layout:
        scales = a.new_empty((rows, width // 32), dtype=torch.uint8)
    return a.new_empty(a.shape, dtype=torch.float8_e4m3fn), scales.flatten()


def _scales(like: torch.Tensor, rows: int, width: int) -> torch.Tensor:
    """As tensor cores take them: padded to tiles of 128 by 4."""
    return like.new_empty((-(-rows // 128) * 128, -(-width // 4) * 4), dtype=torch.uint8)


# gemm/gemm_base.py, DEFAULT_WORKSPACE_SIZE; `_get_cache_buf` of utils.py keeps one for each name.
WORKSPACE_BYTES = 32 << 20


class Products:
    """Products of quantised weights (gemm/gemm_base.py); each kind keeps one workspace."""

    def __init__(self) -> None:
        self._kept: dict[str, torch.Tensor] = {}

    def clear(self) -> None:
        """A process in which none has run yet."""
        self._kept.clear()

    def _keep(self, name: str, device: torch.device) -> None:
        if name not in self._kept:
            self._kept[name] = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=device)

    def mm_fp4(
        self,
        a: torch.Tensor,
        b: torch.Tensor,
        a_descale: torch.Tensor,
        b_descale: torch.Tensor,
        alpha: torch.Tensor | None = None,
        out_dtype: torch.dtype = torch.bfloat16,
        out: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> torch.Tensor:
        """(m, k/2) by (k/2, n), two numbers to a byte."""
        self._keep("mm_fp4_workspace", a.device)
        return _product(a, (a.shape[0], b.shape[1]), out_dtype, out)

    def mm_mxfp8(
        self,
        a: torch.Tensor,
        b: torch.Tensor,
        a_descale: torch.Tensor,
        b_descale: torch.Tensor,
        out: torch.Tensor | None = None,
        out_dtype: torch.dtype = torch.bfloat16,
        **kwargs: Any,
    ) -> torch.Tensor:
        """(m, k) by (k, n)."""
        self._keep("mm_mxfp8_workspace", a.device)
        return _product(a, (a.shape[0], b.shape[1]), out_dtype, out)

    def bmm_fp8(
        self,
        a: torch.Tensor,
        b: torch.Tensor,
        a_scale: torch.Tensor,
        b_scale: torch.Tensor,
        dtype: torch.dtype,
        out: torch.Tensor | None = None,
        backend: str = "cublas",
    ) -> torch.Tensor:
        """(batch, m, k) by (batch, k, n)."""
        self._keep("bmm_fp8_workspace", a.device)
        return _product(a, (a.shape[0], a.shape[1], b.shape[2]), dtype, out)

    def described(self) -> Described:
        """Everything of FlashInfer that is described."""
        products = {"mm_fp4": self.mm_fp4, "mm_mxfp8": self.mm_mxfp8, "bmm_fp8": self.bmm_fp8}
        wrappers = dict.fromkeys(
            (
                "BatchPrefillWithPagedKVCacheWrapper",
                "BatchPrefillWithRaggedKVCacheWrapper",
                "BatchDecodeWithPagedKVCacheWrapper",
            ),
            PagedAttention,
        )
        return {
            "flashinfer": {
                **products,
                **wrappers,
                "get_seq_lens": get_seq_lens,
                "fp4_quantize": partial(_quantize_to_fp4, 16),
                "nvfp4_quantize": partial(_quantize_to_fp4, 16),
                "mxfp4_quantize": partial(_quantize_to_fp4, 32),
                "mxfp8_quantize": mxfp8_quantize,
            },
            "flashinfer.gemm": {**products, "fp8_blockscale_gemm_sm90": fp8_blockscale_gemm_sm90},
            "flashinfer.decode": {
                **wrappers,
                "fast_decode_plan": PagedAttention.plan,
                "trtllm_batch_decode_with_kv_cache": run_into,
                "xqa_batch_decode_with_kv_cache": run_into,
            },
            "flashinfer.prefill": {**wrappers, "trtllm_batch_context_with_kv_cache": run_into},
            "flashinfer.utils": {
                one.__name__: one
                for one in (get_device_sm_count, get_trtllm_gen_multi_ctas_kv_counter_bytes)
            },
            "flashinfer.sampling": {
                "top_k_top_p_sampling_from_logits": top_k_top_p_sampling_from_logits,
                "top_p_sampling_from_probs": sampling_from_probs,
                "top_k_sampling_from_probs": sampling_from_probs,
            },
            "flashinfer.gdn_prefill": {"chunk_gated_delta_rule": chunk_gated_delta_rule},
            "flashinfer.jit.core": {"check_cuda_arch": lambda: None},
        }


Described = Mapping[str, Mapping[str, Any]]


class _Kind(type):
    """A hollow class: its public names stand for nothing, as if it were an enum."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return f"{cls.__name__}.{name}"


class _Hollow(types.ModuleType):
    """A module whose public names are empty classes, or functions that raise when called."""

    def __init__(self, name: str, packages: HollowPackages) -> None:
        super().__init__(name)
        self.__dict__["_packages"] = packages

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        full = f"{self.__name__}.{name}"
        if any(known == full or known.startswith(f"{full}.") for known in self._packages.described):
            return importlib.import_module(full)
        if name[0].isupper():
            made: Any = _Kind(name, (), {"__init__": lambda self, *args, **kwargs: None})
        else:
            made = self._packages.refused(full)
        setattr(self, name, made)
        return made

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """A function that has the name of a module."""
        return self._packages.refused(self.__name__)(*args, **kwargs)


class HollowPackages:
    """Finds modules of these packages as hollow ones, ahead of the real ones.

    `module` names the part of the model at work, `way_out` what avoids an undescribed function.
    """

    def __init__(
        self, names: Sequence[str], described: Described, module: Callable[[], str], way_out: str
    ) -> None:
        self.described = described
        self._names, self._module, self._way_out = frozenset(names), module, way_out

    def install(self) -> None:
        """Must come before anybody looks for the packages."""
        sys.meta_path.insert(0, self)

    def refused(self, name: str) -> Callable[..., Any]:
        """A function that raises NoFakeImplementation, which names it."""

        def refuse(*args: Any, **kwargs: Any) -> Any:
            raise NoFakeImplementation(name, self._module(), self._way_out)

        return refuse

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name.partition(".")[0] not in self._names:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type]

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _Hollow(spec.name, self)

    def exec_module(self, module: types.ModuleType) -> None:
        module.__dict__.update(self.described.get(module.__name__, {}))
        # The least with which vLLM samples (v1/sample/ops/topk_topp_sampler.py, 0.16 to 0.22).
        module.__dict__.setdefault("__version__", "0.2.3")


_PACKAGES = ("flashinfer", "flashinfer_cubin", "flashinfer_jit_cache")
WAY_OUT = "another --linear-backend, --moe-backend or --attention-backend may do without it"


def install_flashinfer(stage: Stage) -> None:
    """Must come before vLLM looks for the package."""
    described = stage.products.described()
    HollowPackages(_PACKAGES, described, lambda: stage.ledger.module, WAY_OUT).install()


def install_humming(stage: Stage) -> None:
    """vLLM 0.33's kernels for 4-bit floats on Hopper: weight layout unknown, so refused by name."""

    def refuse() -> Any:
        raise NoFakeImplementation("humming", stage.ledger.module, WAY_OUT)

    replace(targets.HUMMING_DEVICE, refuse)


# What a TMA descriptor wants rows aligned to, in bytes.
_TMA_BYTES = 16
_BLOCK = 128
# kLegacyMKAlignmentForContiguousLayout: rows of one expert begin at multiples of it.
_ALIGNMENT_ROWS = 128
_WAY_OUT = "VLLM_USE_DEEP_GEMM=0 does without it"
# They write to what they are given, or set something.
_WITHOUT_RESULTS = (
    "fp8_gemm_nt",
    "m_grouped_fp8_gemm_nt_contiguous",
    "m_grouped_fp8_gemm_nt_masked",
    "fp8_m_grouped_gemm_nt_masked",
    "set_num_sms",
    "set_pdl",
)


def install_deep_gemm(stage: Stage) -> None:
    """Must precede vLLM's search for DeepGEMM. FP8 scales are laid out as in csrc/apis/layout.hpp
    (`transform_sf_into_required_layout`).
    """
    if not targets.DEEP_GEMM_IS_BROUGHT:
        return
    major = stage.machine.capability[0]

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
        """Scales of `mn` rows and `k` columns as this GPU takes them."""
        if sf.dtype != torch.float32:
            return sf
        if major != 9 and not disable_ue8m0_cast:
            return packed(sf, mn)
        by_block = recipe is not None and recipe[0 if is_sfa else -2] == _BLOCK
        return sf if by_block else aligned(sf)

    described: dict[str, Callable[..., Any]] = {
        **dict.fromkeys(_WITHOUT_RESULTS, do_nothing),
        "transform_sf_into_required_layout": required_layout,
        "get_mn_major_tma_aligned_tensor": aligned,
        "get_mn_major_tma_aligned_packed_ue8m0_tensor": packed,
        "get_mk_alignment_for_contiguous_layout": lambda: _ALIGNMENT_ROWS,
    }
    # On the largest Blackwells they follow the number of rows, by a table that was not read.
    if major != 10:
        described["get_theoretical_mk_alignment_for_contiguous_layout"] = lambda *rows: (
            _ALIGNMENT_ROWS
        )
        described["set_mk_alignment_for_contiguous_layout"] = do_nothing
    packages = {"deep_gemm": described}
    HollowPackages(("deep_gemm",), packages, lambda: stage.ledger.module, _WAY_OUT).install()


def aligned(sf: torch.Tensor) -> torch.Tensor:
    """Column by column, each a whole number of TMA's units."""
    return _by_column(sf, sf.shape[-2], sf.shape[-1], sf.dtype)


def packed(sf: torch.Tensor, rows: int | None = None) -> torch.Tensor:
    """Exponents of four columns in an int32, per row of the weights (`rows`, or those of `sf`)."""
    rows = sf.shape[-2] if rows is None else rows
    return _by_column(sf, rows, -(-sf.shape[-1] // 4), torch.int32)


def _by_column(like: torch.Tensor, rows: int, columns: int, dtype: torch.dtype) -> torch.Tensor:
    unit = _TMA_BYTES // dtype.itemsize
    height = -(-rows // unit) * unit
    before = tuple(like.shape[:-2])
    strides = (*(height * columns for _ in before), 1, height)
    return torch.empty_strided((*before, rows, columns), strides, dtype=dtype, device=like.device)
