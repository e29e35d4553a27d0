"""Every live tensor storage on the imaginary GPU, and the moments at which they took most."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from mmcalib.child.rehearsal.device.machine import Machine
from mmcalib.child.storages import storages
from mmcalib.text import MIB

# A peak's listing is for a reader: what is smaller explains nothing.
_WORTH_NAMING_BYTES = MIB


@dataclass(frozen=True, slots=True)
class Live:
    """One storage: its bytes as asked for, and what made it, in which module of the model."""

    nbytes: int
    operation: str
    shape: tuple[int, ...]
    dtype: str
    module: str


@dataclass(slots=True)
class LedgerPhase:
    """Bytes allocated when it began, at its highest and at its end; what lived at the highest.

    `scratch_bytes` is the part of the peak that kernels take for themselves; `largest` excludes
    what was there before the phase. `embeddings` is what an encoder made of its items.
    """

    name: str
    start_bytes: int
    peak_bytes: int
    end_bytes: int = 0
    scratch_bytes: int = 0
    scratch_operation: str = ""
    largest: tuple[Live, ...] = ()
    items: int = 0
    embeddings: int = 0
    output_bytes: int = 0
    storages: int = 0
    _before: dict[int, Live] = field(default_factory=dict)
    _left: dict[int, Live] = field(default_factory=dict)
    _at_peak: dict[int, Live] | None = None
    _grown: bool = field(default=False)


class Ledger:
    """Books storages of fake tensors into the allocator when they appear, and out when they die."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._era = 0
        self.live: dict[int, Live] = {}
        self.module = ""
        self._blocks: dict[int, int | None] = {}
        self._phases: list[LedgerPhase] = []

    def book(self, tensor: torch.Tensor, operation: str) -> None:
        """Count the tensor's storage, once, however many tensors view it; follow its resizing."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        nbytes = storage.nbytes()
        known = self.live.get(key)
        if known is not None:
            if known.nbytes == nbytes:
                return
            self._release(key, self._era)
        else:
            weakref.finalize(storage, self._release, key, self._era).atexit = False
        self._blocks[key] = self._machine.allocator.allocate(nbytes) if nbytes else None
        shape, dtype = tuple(tensor.shape), str(tensor.dtype).removeprefix("torch.")
        self.live[key] = Live(nbytes, operation, shape, dtype, self.module)
        self._raise_peaks(0, "")

    def exempt(self, tensor: torch.Tensor) -> None:
        """The tensor's storage is not on the device, whatever it says."""
        key = tensor.untyped_storage()._cdata
        self._release(key, self._era)
        self.live[key] = Live(tensor.untyped_storage().nbytes(), "host memory", (), "", "")
        self._blocks[key] = None

    def drop(self, tensor: torch.Tensor) -> None:
        """Nothing will read the tensor's storage again, though somebody may still hold it."""
        self._release(tensor.untyped_storage()._cdata, self._era)

    def scratch(self, nbytes: int, operation: str) -> None:
        """A kernel takes so many bytes for itself while it runs: allocated and freed at once."""
        if not nbytes:
            return
        block = self._machine.allocator.allocate(nbytes)
        self._raise_peaks(nbytes, operation)
        self._machine.allocator.free(block)

    def booked_bytes(self, tensors: Iterable[torch.Tensor]) -> int:
        """What the blocks of their storages take, each once."""
        blocks = (self._blocks.get(key) for key in storages(tensors))
        return sum(self._machine.allocator.size_of(block) for block in blocks if block is not None)

    def made_after(self, part: LedgerPhase) -> int:
        """Bytes of what lives now and was not there before `part`, nor, where that counts since
        another phase, at its end.
        """
        return sum(
            live.nbytes
            for key, live in self.live.items()
            if part._before.get(key) is not live and part._left.get(key) is not live
        )

    def clear(self) -> None:
        """Forget everything; what dies later was booked in an era that is over."""
        self._era += 1
        self.live.clear()
        self._blocks.clear()
        self.module = ""

    def _release(self, key: int, era: int) -> None:
        if era != self._era:
            return
        for phase in self._phases:
            if phase._grown:
                phase._at_peak, phase._grown = dict(self.live), False
        if self.live.pop(key, None) is None:
            return
        block = self._blocks.pop(key)
        if block is not None:
            self._machine.allocator.free(block)

    def _raise_peaks(self, scratch_bytes: int, operation: str) -> None:
        held = self._machine.allocator.allocated_bytes
        for phase in self._phases:
            if held > phase.peak_bytes:
                phase.peak_bytes, phase._grown = held, True
                phase.scratch_bytes, phase.scratch_operation = scratch_bytes, operation

    @contextmanager
    def phase(
        self, name: str, *, since: LedgerPhase | None = None, largest: int = 12
    ) -> Iterator[LedgerPhase]:
        """While open, its peak is watched; phases may nest. `largest` tensors are kept of it.

        With `since`, its start and what was there before are those of the other phase.
        """
        held = self._machine.allocator.allocated_bytes
        before = since._before if since else dict(self.live)
        phase = LedgerPhase(name, since.start_bytes if since else held, held, _before=before)
        phase._grown = since is not None
        self._phases.append(phase)
        try:
            yield phase
        finally:
            self._phases.remove(phase)
            phase.end_bytes = self._machine.allocator.allocated_bytes
            if since is not None:
                phase._left = dict(self.live)
            at_peak = self.live if phase._grown or phase._at_peak is None else phase._at_peak
            new = [
                live
                for key, live in at_peak.items()
                if phase._before.get(key) is not live and live.nbytes >= _WORTH_NAMING_BYTES
            ]
            phase.largest = tuple(sorted(new, key=lambda one: -one.nbytes)[:largest])
            phase._at_peak = None
