"""What torch asked of the CPU's allocator, in order, and what that comes to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

# Address and bytes; these are below zero where it is given back.
Event = tuple[int, int]
# When, within which convolution (0: none), address, bytes.
_Timed = tuple[int, int, int, int]
_ONEDNN = "aten::mkldnn_convolution"


def traced(run: Callable[[], Any]) -> tuple[Any, list[Event]]:
    """The result, and every request to the CPU's allocator in their order."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as trace:
        result = run()
    found = []
    waiting = [(e, 0) for e in trace.profiler.kineto_results.experimental_event_tree()]
    while waiting:
        event, within = waiting.pop()
        if event.name == _ONEDNN:
            within = event.start_time_ns
        waiting += [(child, within) for child in event.children]
        if event.name == "[memory]":
            fields = event.extra_fields
            found.append((event.start_time_ns, within, fields.ptr, fields.alloc_size))
    found.sort()
    return result, [(address, size) for _, _, address, size in _without_reorders(found)]


def _without_reorders(found: list[_Timed]) -> list[_Timed]:
    """Without what one convolution of oneDNN takes and gives back: on some CPUs it reorders its
    input and weights, which no GPU does.
    """
    taken: dict[tuple[int, int], int] = {}
    dropped: set[int] = set()
    for number, (_, within, address, size) in enumerate(found):
        if within and size > 0:
            taken[within, address] = number
        elif within and (within, address) in taken:
            dropped |= {number, taken.pop((within, address))}
    return [one for number, one in enumerate(found) if number not in dropped]


def peak(events: list[Event]) -> int:
    """The most bytes that were held at once."""
    held = most = 0
    for _, size in events:
        held += size
        most = max(most, held)
    return most


def block_peak(before: list[Event], events: list[Event]) -> int:
    """What the same requests would take of a GPU, above what those before them hold there."""
    from mmcalib.child.rehearsal.allocator import CachingAllocator

    allocator = CachingAllocator()
    blocks: dict[int, int] = {}
    for position, (address, size) in enumerate([*before, *events]):
        if position == len(before):
            held = allocator.allocated_bytes
            allocator.reset_peak()
        if size > 0:
            blocks[address] = allocator.allocate(size)
        else:
            allocator.free(blocks.pop(address))
    return allocator.allocated_peak_bytes - held
