"""Memory that an operation uses inside its CUDA kernel and frees when it returns.

A fake tensor only shows inputs and outputs. Operations missing here need little (reductions,
softmax: partial results of some MiB at most). Read from pytorch's aten/src/ATen/native/cuda/ as of
torch 2.13, and from CUB 3.0 and 3.5. CUB's sizes are exact except for the scratch of its look-back,
which depends on the GPU's tuning. cuDNN's were asked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

INT64_BYTES = 8
# INT_MAX: torch splits a longer sort into batches of whole rows (SortStable.cu).
_INT_MAX = 2**31 - 1
# Sort.h, should_use_small_sort: torch sorts rows up to this length in place.
SMALL_SORT_ROW = 4096
# SortStable.cu, do_launch_stable_sort_kernel: "rough heuristics where even a single sort occupies
# GPU", and the number of rows from which one segmented sort handles all of them.
LARGE_SORT_ROW = 1_000_000
SEGMENTED_SORT_ROWS = 128
# TensorTopK.cu, should_use_multiblock: for fewer slices, rows from this length are split.
_MULTIBLOCK = (
    *((21, 20000), (41, 10000), (81, 8000), (200, 5000), (800, 3000)),
    *((4001, 800), (1 << 32, 400)),
)
# TensorTopK.cu: threads per block, radix digits, and get_items_per_thread's limits; the wave is an
# H100's 132 multiprocessors with 6 blocks each; other GPUs only shift the middle range.
_TOPK_THREADS, _TOPK_DIGITS, _TOPK_ITEMS, _TOPK_WAVE_BLOCKS = 256, 256, (4, 64), 132 * 6
# CUB's onesweep: 256 digits of 4 B for each tile; a tile is 3,072 (sm_80) to 5,376 (sm_90) items
# of 8 B. Its scan and select, and so nonzero, keep 16 B for some thousand items: left out.
_ONESWEEP_TILE, _ONESWEEP_TILE_BYTES = 5376, 1024


def scratch_bytes(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
    """Return the scratch bytes of aten's `name` (without overload) for these arguments; often 0."""
    sizing = _SIZINGS.get(name)
    if sizing is None or not args or not hasattr(args[0], "shape") or not _numel(args[0]):
        return 0
    return sizing(args, kwargs)


def sort_scratch_bytes(numel: int, row_length: int, element_bytes: int) -> int:
    """Return scratch bytes of torch.sort along dense rows: index arrays and CUB's buffers.

    Sort.cpp `sort_cuda_kernel`, SortStable.cu. Rows of a 128-row batch or more cost 8 B of indices
    and, for the ping-pong of a segmented radix sort, one element and 8 B of indices again.
    """
    if row_length <= SMALL_SORT_ROW:
        return INT64_BYTES * row_length
    count = min(numel, _INT_MAX) // row_length * row_length
    rows = count // row_length
    if rows == 1 or row_length >= LARGE_SORT_ROW:
        return INT64_BYTES * row_length + radix_sort_scratch_bytes(
            row_length, element_bytes, INT64_BYTES
        )
    if rows < SEGMENTED_SORT_ROWS:
        # Two arrays of (row, index) as int2, sorted keys that are not used, and the sort.
        arrays = (2 * INT64_BYTES + element_bytes) * count
        return arrays + radix_sort_scratch_bytes(count, element_bytes, INT64_BYTES)
    # dispatch_segmented_radix_sort.cuh, InvokePasses: "3rd keys buffer", "3rd values buffer".
    return INT64_BYTES * count + (element_bytes + INT64_BYTES) * count


def topk_scratch_bytes(numel: int, row_length: int, k: int, element_bytes: int) -> int:
    """Return scratch bytes of torch.topk on contiguous rows (`mbtopk::launch`): counts, a sort."""
    rows = numel // row_length
    counting = 0
    if next(row_length >= least for below, least in _MULTIBLOCK if rows < below):
        fewest, most = _TOPK_ITEMS
        items = min(max(-(-numel // (_TOPK_WAVE_BLOCKS * _TOPK_THREADS)), fewest), most)
        blocks = rows * -(-row_length // (items * _TOPK_THREADS))
        per_row = 3 * element_bytes + 12 + 4 * _TOPK_DIGITS
        counting = rows * per_row + blocks * (2 * _TOPK_DIGITS + 8)
    if k <= SMALL_SORT_ROW:
        return counting
    sorted_copies = rows * k * (element_bytes + INT64_BYTES)
    return max(counting, sorted_copies + sort_scratch_bytes(rows * k, k, element_bytes))


def index_put_scratch_bytes(indices: int) -> int:
    """Return scratch bytes of index_put_ with accumulation (`index_put_with_sort_kernel`)."""
    return 4 * INT64_BYTES * indices + radix_sort_scratch_bytes(indices, INT64_BYTES, INT64_BYTES)


def _sort(args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
    self = args[0]
    dim = kwargs.get("dim", args[1] if len(args) > 1 and type(args[1]) is int else -1)
    if not self.shape:
        return 0
    numel, row_length, width = _numel(self), self.shape[dim], _width(self)
    own = sort_scratch_bytes(numel, row_length, width)
    dense = numel == 1 + sum(
        (size - 1) * step for size, step in zip(self.shape, self.stride(), strict=True)
    )
    if row_length <= SMALL_SORT_ROW or (dense and self.stride(dim) == 1):
        return own
    # Transposed copies with dense rows: of the input, and of both results.
    return own + numel * (2 * width + INT64_BYTES)


def _topk(args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
    self = args[0]
    if not self.shape:
        return 0
    k, dim = _argument(args, kwargs, 1, "k", 0), _argument(args, kwargs, 2, "dim", -1)
    numel, width = _numel(self), _width(self)
    return _copy_bytes(self) + topk_scratch_bytes(numel, self.shape[dim], k, width)


def _cumulate(args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
    """ReduceOps.cpp `impl_func_cum_ops` converts; ScanUtils.cuh `scan_dim` needs dense rows."""
    self, numel = args[0], _numel(args[0])
    dtype = kwargs.get("dtype")
    widens = dtype is None and not self.dtype.is_floating_point and _width(self) < 8
    nbytes = _copy_bytes(self)
    if widens or (dtype is not None and dtype != self.dtype):
        nbytes = numel * (INT64_BYTES if dtype is None else dtype.itemsize)
    return nbytes


def _masked_scatter(args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
    """An int64 prefix sum like `self`, and the mask (`launch_masked_scatter_kernel`)."""
    numel = _numel(args[0])
    mask, source = _argument(args, kwargs, 1, "mask"), _argument(args, kwargs, 2, "source")
    expands = mask is not None and (_numel(mask) != numel or not mask.is_contiguous())
    copied = 0 if source is None else _copy_bytes(source)
    return copied + INT64_BYTES * numel + (numel if expands else 0)


def _index_put(args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
    if not _argument(args, kwargs, 3, "accumulate", False) or len(args) < 3:
        return 0
    self, tensors, values = args[0], [index for index in args[1] if index is not None], args[2]
    indices = max((_numel(index) for index in tensors), default=0)
    dimensions = zip(self.shape, [*args[1], *[None] * len(self.shape)], strict=False)
    whole = indices * prod(int(size) for size, index in dimensions if index is None)
    copied = 0 if _numel(values) == whole and values.is_contiguous() else whole
    return copied * _width(values) + index_put_scratch_bytes(indices)


def _multinomial(args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
    """Distributions.cpp `multinomial_out`: one exponential draw for each probability.

    MultinomialKernel.cu has three such arrays for several draws with replacement.
    """
    draws = _argument(args, kwargs, 1, "num_samples", 1)
    replacement = _argument(args, kwargs, 2, "replacement", False)
    arrays = 3 if replacement and draws > 1 else 1
    return arrays * _numel(args[0]) * _width(args[0])


def _unique(args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
    """UniqueCub.cu `UniqueCub`: the values sorted, and with an inverse two arrays of indices."""
    numel, width = _numel(args[0]), _width(args[0])
    index = INT64_BYTES if _argument(args, kwargs, 2, "return_inverse", False) else 0
    return numel * (width + 2 * index) + radix_sort_scratch_bytes(numel, width, index)


def _convolution(args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
    """cuDNN's copies of input, filter and output with channels last, padded to multiples of 8.

    For 16 bits and 8 channels or more its heuristics choose kernels that need them, on compute
    capability 7.5 to 12.0; with fewer channels, such as a picture's, kernels need so much at most.
    cuDNN 9.10, 9.19 and 9.20 say so of plans made without a device (their WORKSPACE_SIZE under
    CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP).
    """
    tensor, weight, _, stride, padding, dilation, transposed, *_ = args
    (batch, channels, *sizes), (filters, grouped, *window) = tensor.shape, weight.shape
    depthwise = grouped == 1 < channels
    if transposed or depthwise or len(sizes) > 2 or (len(sizes) == 2 and tensor.stride(1) == 1):
        return 0
    output = 1
    for size, k, step, pad, gap in zip(sizes, window, stride, padding, dilation, strict=True):
        output *= (size + 2 * pad - gap * (k - 1) - 1) // step + 1
    channels, filters, grouped = (-(-count // 8) * 8 for count in (channels, filters, grouped))
    copied = channels * prod(sizes) * batch + filters * (output * batch + grouped * prod(window))
    return int(copied) * _width(tensor) + _copy_bytes(tensor)


def _argument(
    args: Sequence[Any], kwargs: Mapping[str, Any], place: int, name: str, default: Any = None
) -> Any:
    return kwargs.get(name, args[place] if len(args) > place else default)


def _numel(tensor: Any) -> int:
    return prod(tensor.shape)


def _width(tensor: Any) -> int:
    return int(tensor.element_size())


def _copy_bytes(tensor: Any) -> int:
    return 0 if tensor.is_contiguous() else _numel(tensor) * _width(tensor)


def radix_sort_scratch_bytes(count: int, key_bytes: int, value_bytes: int) -> int:
    """Return scratch bytes of dispatch_radix_sort.cuh `InvokeOnesweep` with read-only inputs."""
    tiles = -(-count // _ONESWEEP_TILE)
    return count * (key_bytes + value_bytes) + tiles * _ONESWEEP_TILE_BYTES


_SIZINGS = {
    "convolution": _convolution,
    "sort": _sort,
    "topk": _topk,
    "multinomial": _multinomial,
    **dict.fromkeys(("cumsum", "cumsum_", "cumprod"), _cumulate),
    **dict.fromkeys(("masked_scatter", "masked_scatter_"), _masked_scatter),
    **dict.fromkeys(("index_put", "index_put_", "_index_put_impl_"), _index_put),
    **dict.fromkeys(("_unique", "_unique2"), _unique),
}
