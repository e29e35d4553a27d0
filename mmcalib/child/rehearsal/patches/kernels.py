"""vLLM's compiled CUDA operations and FlashAttention; only the shapes of their results matter.

Operations with results use vLLM's own fake implementations. Operations that write into their
arguments do nothing. Others raise NoFakeImplementation with their name.
"""

from __future__ import annotations

import functools
import inspect
import math
import sys
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import torch

from mmcalib.child.rehearsal.device import NoFakeImplementation
from mmcalib.child.rehearsal.ledger import Ledger
from mmcalib.child.rehearsal.patches.flashinfer import get_device_sm_count
from mmcalib.child.rehearsal.scratch import radix_sort_scratch_bytes
from mmcalib.releases import targets
from mmcalib.releases.targets import FLASH_ATTENTION, OUTPUTS, WRITE_ONLY, find, replace

if TYPE_CHECKING:
    from mmcalib.child.rehearsal.startup import ImaginaryMachine

# Kernels choose tile sizes by it.
_MAX_SHARED_MEMORY_BYTES = 227 << 10


class Operation:
    """One compiled operation under any of its overloads; `out` writes to its arguments."""

    def __init__(self, name: str, ledger: Ledger) -> None:
        self.name = name
        self.fake: Callable[..., Any] | None = None
        self._ledger = ledger
        self.default = self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        name = self.name.partition("::")[2]
        output = args[OUTPUTS[name]] if name in OUTPUTS and len(args) > OUTPUTS[name] else None
        if output is not None:
            return output
        if self.fake is not None:
            return self.fake(*args, **kwargs)
        if name in WRITE_ONLY:
            return None
        why = "vLLM does not describe its result; try another --linear-backend or --moe-backend"
        raise NoFakeImplementation(self.name, self._ledger.module, why)

    def out(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing in the overload that writes results into its arguments."""


class _Namespace:
    """A namespace like `torch.ops._C`: every name is an operation."""

    def __init__(self, name: str, ledger: Ledger) -> None:
        self._name, self._ledger = name, ledger

    def __getattr__(self, name: str) -> Operation:
        if name.startswith("__"):
            raise AttributeError(name)
        operation = Operation(f"{self._name}::{name}", self._ledger)
        setattr(self, name, operation)
        return operation


def install_operations(machine: ImaginaryMachine) -> None:
    """Replace the compiled extensions; call it before vLLM registers its fake implementations."""
    for extension in targets.EXTENSIONS:
        sys.modules[extension] = types.ModuleType(extension)
    # vLLM's sleep mode imports these names; rehearsals never sleep.
    for name in ("init_module", "python_create_and_map", "python_unmap_and_release"):
        setattr(sys.modules[targets.MEMORY_ALLOCATOR], name, None)
    spaces = {name: _Namespace(name, machine.ledger) for name in targets.NAMESPACES}
    for name, space in spaces.items():
        setattr(torch.ops, name, space)
    shared_memory = spaces["_C_cuda_utils"].get_max_shared_memory_per_block_device_attribute
    shared_memory.fake = lambda device: _MAX_SHARED_MEMORY_BYTES
    spaces["_moe_C"].moe_permute_unpermute_supported.fake = lambda *args: True
    # It sorts the tokens' experts and rows, both int32.
    spaces["_moe_C"].moe_permute_sort_workspace_size.fake = lambda rows, experts: (
        radix_sort_scratch_bytes(rows, 4, 4)
    )
    # The same as vLLM's own, which 0.11 does not have.
    spaces["_C"].awq_marlin_repack.fake = lambda w, k, n, bits: w.new_empty(
        (k // 16, n * bits // 2)
    )
    register = torch.library.register_fake

    def register_fake(op: Any, func: Any = None, /, **kwargs: Any) -> Any:
        space, _, name = op.partition("::") if isinstance(op, str) else ("", "", "")
        if space not in spaces:
            return register(op, func, **kwargs)
        operation = getattr(spaces[space], name.removesuffix(".default"))

        def keep(implementation: Any) -> Any:
            operation.fake = implementation
            return implementation

        return keep if func is None else keep(func)

    replace("torch.library.register_fake", register_fake)


# Compute capabilities of vLLM's CUTLASS kernels, from its documentation of quantization (FP8 from
# Ada, block FP8 and grouped from Hopper, FP4 from Blackwell), not from their source, except MXFP4's
# experts: below 120 (`mxfp4_experts_quant_sm_supported`, mxfp4_experts_quant.cu).
_NEWEST = 1000
_SUPPORTED = {
    "cutlass_scaled_mm_supports_fp8": range(89, _NEWEST),
    "cutlass_scaled_mm_supports_block_fp8": range(90, _NEWEST),
    "cutlass_group_gemm_supported": range(90, _NEWEST),
    "cutlass_scaled_mm_supports_fp4": range(100, _NEWEST),
    "mxfp4_experts_quant_supported": range(100, 120),
}


def install_kernels(machine: ImaginaryMachine) -> None:
    """Tell vLLM which kernels work, and let the device view host memory without allocations."""
    major, minor = machine.gpu.capability
    for name, supported in _SUPPORTED.items():
        replace(targets.custom_ops(name), lambda _, works=10 * major + minor in supported: works)

    def device_view(host: torch.Tensor) -> torch.Tensor:
        view = torch.empty_like(host, device="cuda")
        machine.ledger.exempt(view)
        return view

    def router_product(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Multiply (tokens, k) by (experts, k) in float32; few tokens would need partial sums."""
        return x.new_empty((x.shape[0], weight.shape[0]), dtype=torch.float32)

    router = types.ModuleType(targets.ROUTER_PRODUCT)
    router.__dict__["bf16x3_router_gemm"] = router_product
    sys.modules[router.__name__] = router
    replace(targets.DEVICE_VIEW, device_view)
    # Last, because it imports much of vLLM. The warmup would compile and tune with a driver.
    replace(targets.WARMUP, lambda worker: None)


_Prepare = Callable[..., tuple[torch.Tensor | None, ...]]


def install_experts(machine: ImaginaryMachine) -> None:
    """Pack only one expert; recording the operations of all would take minutes."""
    for target in targets.EXPERT_PACKING:
        if (place := find(target)) is not None:
            replace(target, pack_first_expert(getattr(*place), machine.ledger.join))


def pack_first_expert(prepare: _Prepare, join: Callable[[torch.Tensor, int], Any]) -> _Prepare:
    """Run `prepare` for the first expert, and `join` as many of its results as there are experts.

    Its first tensor has a row for each. Some get their number too, or read it from their `layer`.
    """
    signature = inspect.signature(prepare)

    @functools.wraps(prepare)
    def prepare_first(*args: Any, **kwargs: Any) -> tuple[torch.Tensor | None, ...]:
        given = signature.bind(*args, **kwargs)
        named = given.arguments
        count = next(len(value) for value in named.values() if isinstance(value, torch.Tensor))
        for name, value in named.items():
            if isinstance(value, torch.Tensor) and value.shape[:1] == (count,):
                named[name] = value[:1]
            elif name == "num_experts":
                named[name] = 1
        layer = named.get("layer", types.SimpleNamespace())
        with patch.object(layer, "num_experts", 1, create=True):
            results = prepare(*given.args, **given.kwargs)
        return tuple(None if part is None else join(part, count) for part in results)

    return prepare_first


# FlashAttention 3's tiles of queries and keys for sequences without a mask, by the largest head
# size (hopper/tile_size.h, `tile_size_fwd_sm90`). FlashAttention 4's on Blackwell are 256 and 128.
_HOPPER_TILES = {64: (192, 192), 96: (192, 144), 128: (128, 160), 192: (128, 96), 256: (128, 80)}
# More sequences are never split (hopper/flash_api.cpp, PREPARE_VARLEN_MAX_BATCHES_1CTA).
_MOST_SPLIT_SEQUENCES = 992
_MOST_SPLITS = 128


def key_splits(
    version: int, multiprocessors: int, sequences: int, heads: int, tokens: int, head_size: int
) -> int:
    """Return into how many parts FlashAttention splits the keys of each of these sequences.

    It does so where tiles of queries would leave multiprocessors idle. `tokens` is that of the
    longest sequence; there is no mask. From hopper/heuristics.h `num_splits_heuristic`, which
    counts one sequence, and flash_attn/cute/interface.py, which counts all. FlashAttention 2 splits
    for single queries only.
    """
    if version == 4:
        tiles, parts = sequences * heads * -(-tokens // 256), -(-tokens // 128)
        return max(min(multiprocessors // tiles, parts, _MOST_SPLITS), 1) if parts > 4 else 1
    if version != 3 or sequences > _MOST_SPLIT_SEQUENCES:
        return 1
    queries, keys = _HOPPER_TILES[min(size for size in _HOPPER_TILES if size >= head_size)]
    tiles, parts = heads * -(-tokens // queries), -(-tokens // keys)
    if tiles >= 0.8 * multiprocessors or parts <= 4:
        return 1
    waves = [tiles * n / multiprocessors for n in range(1, min(parts, _MOST_SPLITS) + 1)]
    busy = [wave / math.ceil(wave) for wave in waves]
    return 1 + next(n for n, share in enumerate(busy) if share >= 0.85 * max(busy))


def flash_attn_varlen_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    max_seqlen_q: int,
    cu_seqlens_q: torch.Tensor,
    *args: Any,
    out: torch.Tensor | None = None,
    return_softmax_lse: bool = False,
    causal: bool = False,
    num_splits: int = 0,
    fa_version: int = 2,
    **kwargs: Any,
) -> Any:
    """Return an output like `q` (head size of `v`), and float32 log-sum-exp of (heads, tokens).

    It holds these in float32 for each part of split keys. Only encoders run attention while vLLM
    profiles: whole sequences without a mask.
    """
    tokens, heads, head_size = q.shape
    if out is None:
        out = q.new_empty((tokens, heads, v.shape[-1]))
    lse = q.new_empty((heads, tokens), dtype=torch.float32)
    if not (causal or num_splits):
        work = len(cu_seqlens_q) - 1, heads, int(max_seqlen_q), head_size
        if (splits := key_splits(fa_version, get_device_sm_count(q.device), *work)) > 1:
            q.new_empty((splits, heads, tokens, v.shape[-1] + 1), dtype=torch.float32)
    return (out, lse) if return_softmax_lse else out


def apply_rotary_emb(
    x: torch.Tensor, cos: Any, sin: Any, *args: Any, inplace: bool = False, **kwargs: Any
) -> torch.Tensor:
    return x if inplace else torch.empty_like(x)


def install_attention(machine: ImaginaryMachine) -> None:
    """Replace FlashAttention's modules; call it before vLLM imports attention backends."""
    capability = machine.gpu.capability
    supported = {2: capability[0] >= 8, 3: capability[0] == 9, 4: capability[0] == 10}

    def module(name: str, **content: Any) -> types.ModuleType:
        stub = types.ModuleType(FLASH_ATTENTION + name)
        stub.__path__ = []
        stub.__dict__.update(content)
        sys.modules[stub.__name__] = stub
        return stub

    names: dict[str, Any] = {
        "flash_attn_varlen_func": flash_attn_varlen_func,
        "get_scheduler_metadata": lambda *args, **kwargs: None,
        "compile_flash_attn_varlen_func_from_specs": lambda *args, **kwargs: None,
        "fa_version_unsupported_reason": lambda version, *args: (
            None if supported.get(version) else f"not on compute capability {capability}"
        ),
        "is_fa_version_supported": lambda version, *args: supported.get(version, False),
        **{f"FA{version}_AVAILABLE": works for version, works in supported.items()},
    }
    module("", **names, flash_attn_interface=module(".flash_attn_interface", **names))
    module(".layers")
    module(".layers.rotary", apply_rotary_emb=apply_rotary_emb)
    module(".ops")
    module(".ops.triton")
    module(".ops.triton.rotary", apply_rotary=apply_rotary_emb)


def windows_by_sdpa(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    scale: float | None = None,
    cu_seqlens: torch.Tensor | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """Allocate like vLLM's loop over an encoder's windows: the outputs, and one tensor of all.

    torch uses its memory-efficient kernel if flash does not work; neither stores scores. The loop
    itself has some hundred thousand operations.
    """
    windows = torch.empty_like(q, memory_format=torch.contiguous_format)
    return windows if cu_seqlens is None else torch.empty_like(windows)


_libraries: list[torch.library.Library] = []


def install_windows(machine: ImaginaryMachine) -> None:
    """Replace the operation for encoder windows; vLLM's own operations must be importable."""
    if not targets.HAS_WINDOW_OPERATION:
        return
    # Importing its module makes vLLM register it.
    find(targets.WINDOWS)
    library = torch.library.Library("vllm", "FRAGMENT")
    library.impl("torch_sdpa_wrapper", windows_by_sdpa, "CUDA", allow_override=True)
    # The implementation disappears with the library object, so keep it.
    _libraries.append(library)
