"""Memory of the steps that serve requests on the imaginary GPU."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from mmcalib.child.rehearsal.device import ImaginaryGpu
from mmcalib.child.rehearsal.ledger import LARGEST_TENSORS, Ledger
from mmcalib.child.rehearsal.startup import ImaginaryMachine, track_modules
from mmcalib.child.tensors import storage_sizes
from mmcalib.domain.memory import LiveTensor
from mmcalib.releases import models
from mmcalib.releases.engine import SteppedCore
from mmcalib.releases.runner import ENCODER

# Integer tensors up to this length hold sizes that control the encoder; longer ones are media.
_MAX_VALUES: Final = 4096


@dataclass(frozen=True, slots=True)
class _CachedForward:
    """One forward pass: its peak bytes above its start, and its results as views of storages."""

    peak_bytes: int
    largest: tuple[LiveTensor, ...]
    storages: tuple[int, ...]
    views: tuple[tuple[int, torch.dtype, torch.Size, tuple[int, ...], int], ...]
    structure: Any


class ForwardCache:
    """Caches the forward passes of one loaded model's encoder and language model."""

    def __init__(self, device: ImaginaryGpu, ledger: Ledger) -> None:
        self._device, self._ledger = device, ledger
        # The largest tensors of the highest cached forward since this was emptied.
        self.largest: tuple[LiveTensor, ...] = ()
        # How tokens are divided among sequences, if the language model's memory depends on it.
        self.sharing: Hashable = None
        self._peak_bytes = 0

    def watch(self, model: Any) -> None:
        for method, key in (("forward", self._token_key), (ENCODER, self._media_key)):
            if hasattr(model, method):
                setattr(model, method, self._cache_results(getattr(model, method), key))

    def _cache_results(
        self, forward: Callable[..., Any], key_of: Callable[[Any], Hashable | None]
    ) -> Callable[..., Any]:
        cache: dict[Hashable, _CachedForward] = {}

        def forward_once(*args: Any, **kwargs: Any) -> Any:
            key = key_of((args, kwargs))
            cached = cache.get(key) if key is not None else None
            if cached is not None:
                return self._repeat(cached)
            with self._ledger.phase("forward") as phase:
                out = forward(*args, **kwargs)
            results = self._describe(out)
            if key is not None and results is not None:
                peak = phase.peak_bytes - phase.start_bytes
                cache[key] = _CachedForward(peak, phase.largest, *results)
            return out

        return forward_once

    def _token_key(self, arguments: Any) -> Hashable | None:
        shapes = _shapes(arguments)
        return None if shapes is None else (shapes, self.sharing)

    def _media_key(self, arguments: Any) -> Hashable | None:
        """Return the encoder's key: shapes and the sizes of its items; None if one is unknown."""
        shapes = _shapes(arguments)
        values = []
        for leaf in tree_leaves(arguments):
            if not isinstance(leaf, torch.Tensor) or leaf.dtype.is_floating_point:
                continue
            if leaf.numel() > _MAX_VALUES:
                continue
            value = self._device.values.get(leaf)
            if value is None:
                return None
            values.append(tuple(value.flatten().tolist()))
        return None if shapes is None else (shapes, tuple(values))

    def _describe(self, out: Any) -> Any:
        leaves, structure = tree_flatten(out)
        if not all(isinstance(leaf, torch.Tensor) for leaf in leaves):
            return None
        sizes = storage_sizes(leaves)
        order = {address: base for base, address in enumerate(sizes)}
        views = []
        for leaf in leaves:
            base = order[leaf.untyped_storage()._cdata]
            views.append((base, leaf.dtype, leaf.shape, leaf.stride(), leaf.storage_offset()))
        return tuple(sizes.values()), tuple(views), structure

    def _repeat(self, cached: _CachedForward) -> Any:
        if not self.largest or cached.peak_bytes > self._peak_bytes:
            self.largest, self._peak_bytes = cached.largest, cached.peak_bytes
        self._ledger.scratch(cached.peak_bytes, "a repeated forward pass")
        bases = [torch.empty(size, dtype=torch.uint8, device="cuda") for size in cached.storages]
        leaves = [
            bases[base].view(dtype).as_strided(shape, stride, offset)
            for base, dtype, shape, stride, offset in cached.views
        ]
        return tree_unflatten(leaves, cached.structure)


def _shapes(arguments: Any) -> Hashable | None:
    leaves, structure = tree_flatten(arguments)
    parts: list[Hashable] = [str(structure)]
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor):
            parts.append((tuple(leaf.shape), str(leaf.dtype), leaf.device.type))
        elif isinstance(leaf, int | float | str | bool | None):
            parts.append(leaf)
        else:
            return None
    return tuple(parts)


class StepLedger:
    """Records the memory of steps on the imaginary GPU, as in `Traffic` and `TrafficStep`.

    It skips a step that only continues answers, unless the step has more sequences than any before:
    it takes the same memory as the last such step.
    """

    def __init__(self, machine: ImaginaryMachine) -> None:
        self.peak_bytes = self.reserved_bytes = 0
        # Tensors at the last step's peak.
        self.largest: tuple[LiveTensor, ...] = ()
        self._ledger = machine.ledger
        self._forwards = ForwardCache(machine.device, machine.ledger)
        self._naming, self._divides = ExitStack(), True
        self._base_bytes = self._most_decodes = self._decode_bytes = 0

    @property
    def held_bytes(self) -> int:
        return self._ledger.allocator.allocated_bytes - self._base_bytes

    def profile(self, worker: Any, method: Callable[[], Any]) -> Any:
        """Run a worker's startup profile."""
        with self._ledger.phase("profile") as phase:
            available = method()
        self.reserved_bytes = phase.peak_bytes - phase.start_bytes
        self._base_bytes = phase.start_bytes
        return available

    def on_started(self, core: SteppedCore) -> None:
        """Count from the loaded model with its KV cache from now on."""
        self._base_bytes += self._ledger.booked_bytes(core.kv_tensors)
        model, config = core.worker.model_runner.model, core.worker.vllm_config
        # FlashAttention needs memory for tokens alone.
        self._divides = models.attention_backends(config) != "FLASH_ATTN"
        self._naming.enter_context(track_modules(model, self._ledger))
        self._forwards.watch(model)

    def run(self, decided: Any, work: Callable[[], None]) -> None:
        """Execute a step, or skip it."""
        before, decodes = self.held_bytes, _count_decodes(decided)
        self.largest, self._forwards.largest = (), ()
        if self._divides:
            tokens = decided.num_scheduled_tokens.values()
            self._forwards.sharing = len(tokens), sum(count == 1 for count in tokens)
        if decodes and decodes <= self._most_decodes:
            self.peak_bytes = before + self._decode_bytes
            return
        with self._ledger.phase("step") as phase:
            work()
        self.peak_bytes = phase.peak_bytes - self._base_bytes
        largest = (*phase.largest, *self._forwards.largest)
        self.largest = tuple(sorted(largest, key=lambda t: -t.nbytes)[:LARGEST_TENSORS])
        if decodes:
            self._most_decodes, self._decode_bytes = decodes, self.peak_bytes - before

    def close(self) -> None:
        """Undo `on_started`. A worker's own shutdown needs a driver; `use_gpu` ends it instead."""
        self._naming.close()


def _count_decodes(scheduled: Any) -> int:
    """Count the sequences that a step continues by one token each; 0 if it does anything else."""
    more = scheduled.scheduled_new_reqs or scheduled.scheduled_cached_reqs.resumed_req_ids
    # Such steps also free encoder outputs of an encoder-decoder model.
    more = more or scheduled.scheduled_encoder_inputs or scheduled.free_encoder_mm_hashes
    sequences = len(scheduled.num_scheduled_tokens)
    return 0 if more or sequences != scheduled.total_num_scheduled_tokens else sequences
