"""One rank of a group whose other ranks do not exist: collectives return at once."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from mmcalib.child.rehearsal.patches.patching import replace
from mmcalib.releases import distributed, targets


def install() -> None:
    """Every process group is torch's own fake one; a result has the shape it would have."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    start, group = dist.init_process_group, dist.new_group

    def init_process_group(*args: Any, world_size: int = 1, rank: int = 0, **kwargs: Any) -> None:
        start(backend="fake", store=FakeStore(), world_size=world_size, rank=rank)

    def new_group(ranks: Any = None, *args: Any, **kwargs: Any) -> Any:
        return group(ranks, backend="fake")

    replace("torch.distributed.init_process_group", init_process_group)
    replace("torch.distributed.new_group", new_group)
    replace("torch.distributed.all_gather", all_gather)
    _alone()


def all_gather(parts: list[torch.Tensor], part: torch.Tensor, *args: Any, **kwargs: Any) -> None:
    """Fills the parts; ProcessGroupNCCL::allgather gathers into one flat tensor first."""
    torch.empty(len(parts) * part.numel(), dtype=part.dtype, device=part.device)


def _alone() -> None:
    """What vLLM's groups do beside collectives: look for neighbours, share memory, wait."""
    replace(targets.SAME_NODE, lambda group, *args, **kwargs: [True] * group.size())
    replace(targets.NODE_COUNT, lambda *args, **kwargs: 1)
    replace(targets.BARRIER, lambda self: None)
    # Nothing to give back, and a group that came up in part must not keep the next from coming.
    replace(targets.DESTROY, lambda self: None)
    # FlashInfer's workspace lies outside torch's allocator; without it NCCL reduces, into a result
    # of the same size.
    replace(targets.FLASHINFER_REDUCES, False)
    # vLLM then lets torch's groups do it all.
    replace(targets.NCCL, _NoNccl)
    replace(targets.MESSAGE_QUEUE, staticmethod(lambda *args, **kwargs: None))


class _NoNccl:
    def __init__(self, path: str | None = None) -> None:
        raise OSError("an imaginary GPU has no NCCL")


def end() -> None:
    """Take vLLM's groups down, so that the next rehearsal may have another number of ranks."""
    distributed.end_groups()
    assert not torch.distributed.is_initialized()
