"""Serve requests on it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from mmcalib.child.rehearsal.device import ImaginaryGpu
from mmcalib.child.rehearsal.ledger import Ledger
from mmcalib.child.rehearsal.startup import Stage, named_modules, use_gpu
from mmcalib.child.tensors import storages
from mmcalib.child.traffic import Say, StepBooks, serve
from mmcalib.domain.memory import LiveTensor
from mmcalib.domain.traffic import Traffic, TrafficStep
from mmcalib.engine.messages import ServeTraffic
from mmcalib.releases import models
from mmcalib.releases.engine import SteppedCore
from mmcalib.releases.runner import ENCODER

# Sizes of items and the like, which decide what an encoder does; longer ones are media.
_MOST_VALUES: Final = 4096


@dataclass(frozen=True, slots=True)
class _Seen:
    """One forward: bytes at its peak above its start, and its results as views of storages."""

    peak_bytes: int
    largest: tuple[LiveTensor, ...]
    storages: tuple[int, ...]
    views: tuple[tuple[int, torch.dtype, torch.Size, tuple[int, ...], int], ...]
    structure: Any


class Forwards:
    """Watches the forwards of one loaded model: its encoder's, and that of its language model."""

    def __init__(self, device: ImaginaryGpu, ledger: Ledger) -> None:
        self._device, self._ledger = device, ledger
        # The largest tensors of the highest forward that was not run since this was emptied.
        self.largest: tuple[LiveTensor, ...] = ()
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
        """The encoder's key: shapes and the sizes of its items; None where a size is not known."""
        shapes = _shapes(given)
        values = []
        for leaf in tree_leaves(given):
            if not isinstance(leaf, torch.Tensor) or leaf.dtype.is_floating_point:
                continue
            if leaf.numel() > _MOST_VALUES:
                continue
            known = self._device.values.of(leaf)
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


_NAMED = 12


def serve_imagined(stage: Stage, request: ServeTraffic, say: Say) -> Traffic:
    """The requests on the stage's GPU, which is empty again afterwards."""
    with use_gpu(stage):
        return serve(request, _Ledgered(stage), say)


class _Ledgered(StepBooks):
    """The ledger of the stage's GPU. A step that only goes on with answers is left out, unless it
    has more sequences than ever before: it takes no more than the last such step.
    """

    def __init__(self, stage: Stage) -> None:
        self._stage, self._ledger = stage, stage.ledger
        self._forwards = Forwards(stage.device, stage.ledger)
        self._named = ExitStack()
        self._base_bytes = 0
        self._decoded = 0
        self._decode_bytes = 0
        self._peak_bytes = 0

    def prepare(self, config: Any) -> None:
        models.forgo(config)
        models.forgo_warmup(config)

    def profile(self, worker: Any, method: Callable[[], Any]) -> Any:
        with self._ledger.phase("profile") as phase:
            found = method()
        self.reserved_bytes = phase.peak_bytes - phase.start_bytes
        self._base_bytes = phase.start_bytes
        return found

    def began(self, core: SteppedCore) -> None:
        self._base_bytes += self._ledger.booked_bytes(core.kv_tensors)
        model = core.worker.model_runner.model
        self._named.enter_context(named_modules(model, self._ledger))
        self._forwards.watch(model)

    def run(self, decided: Any, work: Callable[[], None]) -> None:
        before = self._held()
        running = _going_on(decided)
        self.largest, self._forwards.largest = (), ()
        tokens = decided.num_scheduled_tokens.values()
        self._forwards.sharing = len(tokens), sum(one == 1 for one in tokens)
        if running and running <= self._decoded:
            self._peak_bytes = before + self._decode_bytes
            return
        with self._ledger.phase("step") as phase:
            work()
        self._peak_bytes = phase.peak_bytes - self._base_bytes
        found = (*phase.largest, *self._forwards.largest)
        self.largest = tuple(sorted(found, key=lambda one: -one.nbytes)[:_NAMED])
        if running:
            self._decoded, self._decode_bytes = running, self._peak_bytes - before

    def entered(self, step: TrafficStep) -> TrafficStep:
        return dataclasses.replace(step, peak_bytes=self._peak_bytes, held_bytes=self._held())

    def end(self, core: SteppedCore) -> None:
        # A worker that is shut down asks for the driver; the stage takes down what it set up.
        self._named.close()

    def _held(self) -> int:
        return self._stage.machine.allocator.allocated_bytes - self._base_bytes


def _going_on(decided: Any) -> int:
    """How many sequences a step goes on with, by a token each; 0 where it does anything else."""
    if decided.scheduled_new_reqs or decided.scheduled_encoder_inputs:
        return 0
    # What the encoder made for an encoder-decoder model is freed in such steps, too.
    if decided.free_encoder_mm_hashes or decided.scheduled_cached_reqs.resumed_req_ids:
        return 0
    running = len(decided.num_scheduled_tokens)
    return running if running == decided.total_num_scheduled_tokens else 0
