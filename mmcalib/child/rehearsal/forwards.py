"""Forwards of shapes seen before: what they took is booked again, and nothing runs."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from mmcalib.child.rehearsal.device.imaginary import ImaginaryGpu
from mmcalib.child.rehearsal.device.ledger import Ledger, Live
from mmcalib.child.storages import storages
from mmcalib.releases.runner import ENCODER

# Sizes of items and the like, which decide what an encoder does; longer ones are media.
_MOST_VALUES: Final = 4096


@dataclass(frozen=True, slots=True)
class _Seen:
    """One forward: bytes at its peak above its start, and its results as views of storages."""

    peak_bytes: int
    largest: tuple[Live, ...]
    storages: tuple[int, ...]
    views: tuple[tuple[int, torch.dtype, torch.Size, tuple[int, ...], int], ...]
    structure: Any


class Forwards:
    """Watches the forwards of one loaded model: its encoder's, and that of its language model."""

    def __init__(self, device: ImaginaryGpu, ledger: Ledger) -> None:
        self._device, self._ledger = device, ledger
        # The largest tensors of the highest forward that was not run since this was emptied.
        self.largest: tuple[Live, ...] = ()
        # What decides a step of the language model beside its tokens: how they are shared out.
        self.sharing: Hashable = None
        self._peak_bytes = 0

    def watch(self, model: Any) -> None:
        """From now on no forward of it is run twice."""
        for method, key in (("forward", self._tokens), (ENCODER, self._media)):
            if hasattr(model, method):
                setattr(model, method, self._remembering(getattr(model, method), key))

    def _remembering(
        self, forward: Callable[..., Any], key_of: Callable[[Any], Hashable | None]
    ) -> Callable[..., Any]:
        seen: dict[Hashable, _Seen] = {}

        def remembered(*args: Any, **kwargs: Any) -> Any:
            key = key_of((args, kwargs))
            known = seen.get(key) if key is not None else None
            if known is not None:
                return self._again(known)
            with self._ledger.phase("forward") as phase:
                made = forward(*args, **kwargs)
            found = self._noted(made)
            if key is not None and found is not None:
                peak = phase.peak_bytes - phase.start_bytes
                seen[key] = _Seen(peak, phase.largest, *found)
            return made

        return remembered

    def _tokens(self, given: Any) -> Hashable | None:
        """Of the language model: what its tokens are decides nothing."""
        shapes = _shapes(given)
        return None if shapes is None else (shapes, self.sharing)

    def _media(self, given: Any) -> Hashable | None:
        """Of the encoder: also the sizes of its items, which are among what it is given; None where
        some of them are not known.
        """
        shapes = _shapes(given)
        values = []
        for leaf in tree_leaves(given):
            if not isinstance(leaf, torch.Tensor) or leaf.dtype.is_floating_point:
                continue
            if leaf.numel() > _MOST_VALUES:
                continue
            known = self._device.value_of(leaf)
            if known is None:
                return None
            values.append(tuple(known.flatten().tolist()))
        return None if shapes is None else (shapes, tuple(values))

    def _noted(self, made: Any) -> Any:
        leaves, structure = tree_flatten(made)
        if not all(isinstance(leaf, torch.Tensor) for leaf in leaves):
            return None
        sizes = storages(leaves)
        order = {address: base for base, address in enumerate(sizes)}
        views = []
        for leaf in leaves:
            base = order[leaf.untyped_storage()._cdata]
            views.append((base, leaf.dtype, leaf.shape, leaf.stride(), leaf.storage_offset()))
        return tuple(sizes.values()), tuple(views), structure

    def _again(self, seen: _Seen) -> Any:
        if not self.largest or seen.peak_bytes > self._peak_bytes:
            self.largest, self._peak_bytes = seen.largest, seen.peak_bytes
        self._ledger.scratch(seen.peak_bytes, "a forward seen before")
        bases = [torch.empty(size, dtype=torch.uint8, device="cuda") for size in seen.storages]
        leaves = [
            bases[base].view(dtype).as_strided(shape, stride, offset)
            for base, dtype, shape, stride, offset in seen.views
        ]
        return tree_unflatten(leaves, seen.structure)


def _shapes(given: Any) -> Hashable | None:
    """Of all tensors, with everything else; None where that is more than numbers and words."""
    leaves, structure = tree_flatten(given)
    parts: list[Hashable] = [str(structure)]
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor):
            parts.append((tuple(leaf.shape), str(leaf.dtype), leaf.device.type))
        elif isinstance(leaf, int | float | str | bool | None):
            parts.append(leaf)
        else:
            return None
    return tuple(parts)
