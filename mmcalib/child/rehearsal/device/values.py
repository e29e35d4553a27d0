"""What small tensors on the imaginary GPU hold, so that code which looks at values can go on."""

from __future__ import annotations

import weakref

import torch

# Token positions and patch grids of the largest items known take about two million entries.
_MOST_BYTES = 32 << 20
# Small enough to compute anything on; above it only whole numbers decide what code does next.
_ANY_DTYPE_BYTES = 1 << 16


class Values:
    """Real host memory behind some fake storages, shared by all tensors that view them."""

    def __init__(self) -> None:
        self._real: dict[int, torch.Tensor] = {}

    def worth_knowing(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor of this dtype and size is kept with its value."""
        nbytes = tensor.untyped_storage().nbytes()
        if tensor.is_complex() or nbytes > _MOST_BYTES:
            return False
        return nbytes <= _ANY_DTYPE_BYTES or not tensor.dtype.is_floating_point

    def of(self, fake: torch.Tensor) -> torch.Tensor | None:
        """The value as a view that shares memory with every alias; None where it is unknown."""
        flat = self._real.get(fake.untyped_storage()._cdata)
        if flat is None:
            return None
        typed = flat.view(fake.dtype) if flat.dtype != fake.dtype else flat
        return typed.as_strided(fake.size(), fake.stride(), fake.storage_offset())

    def learn(self, fake: torch.Tensor, value: torch.Tensor) -> None:
        """From now on the fake tensor holds this value (copied); ignored when not worth it."""
        if not self.worth_knowing(fake):
            return
        mine = self.of(fake)
        if mine is None:
            storage = fake.untyped_storage()
            if storage.nbytes() != fake.numel() * fake.element_size():
                return
            key = storage._cdata
            self._real[key] = torch.zeros(storage.nbytes(), dtype=torch.uint8)
            weakref.finalize(storage, self._real.pop, key, None).atexit = False
            mine = self.of(fake)
        if mine is not None:
            mine.copy_(value)

    def forget(self, fake: torch.Tensor) -> None:
        """Something unknown was written to it: no alias knows its value any more."""
        self._real.pop(fake.untyped_storage()._cdata, None)
