"""PyTorch's CUDA caching allocator, replayed on addresses that nothing lies behind.

What torch reports as allocated is the size of blocks, not of tensors, and what vLLM subtracts from
the GPU is the size of segments; both follow from the order of requests. The rules are those of
`DeviceCachingAllocator` in c10/cuda/CUDACachingAllocator.cpp (`round_size`, `get_pool`,
`get_free_block`, `get_allocation_size`, `should_split`, `alloc_found_block`, `free_block`,
`try_merge_blocks`, `release_cached_blocks`, `beginAllocateToPool`, `releasePool`), which are the
same from torch 2.8 to 2.13 for the native backend with one stream. Not replayed: other streams'
blocks waiting for events, expandable segments, the threshold of garbage collection, rounding to
powers of two, and what torch gives back before it reports that it is out of memory.
"""

from __future__ import annotations

import re
from bisect import bisect_left, insort
from collections.abc import Hashable
from dataclasses import dataclass, field

from mmcalib.errors import UsageError

MIB = 1 << 20
# c10/core/AllocatorConfig.h: kMinBlockSize, kSmallSize, kSmallBuffer, kMinLargeAlloc, kRoundLarge.
MIN_BLOCK_BYTES = 512
SMALL_REQUEST_BYTES = 1 * MIB
SMALL_SEGMENT_BYTES = 2 * MIB
LARGE_REQUEST_BYTES = 10 * MIB
LARGE_ROUNDING_BYTES = 2 * MIB
# Defaults of large_segment_size_mb and of max_non_split_rounding_mb; read from torch 2.13's
# AcceleratorAllocatorConfig, where max_split_size_mb may not be below it.
LARGE_SEGMENT_BYTES = 20 * MIB
ROUNDING_WITHOUT_SPLIT_BYTES = 20 * MIB

# The first segment's address: anything but 0, which stands for no memory at all.
_FIRST_ADDRESS = 1 << 30

_CHANGES_THE_RULES = (
    *("large_segment_size_mb", "max_non_split_rounding_mb", "roundup_power2_divisions"),
    *("garbage_collection_threshold", "backend"),
)


@dataclass(slots=True, eq=False)
class _Pool:
    """Free blocks by size, then address: the order in which the best fit is looked for."""

    is_small: bool
    free: list[tuple[int, int]] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class _Block:
    address: int
    size: int
    pool: _Pool
    before: _Block | None = None
    after: _Block | None = None


@dataclass(slots=True, eq=False)
class _PoolPair:
    small: _Pool = field(default_factory=lambda: _Pool(True))
    large: _Pool = field(default_factory=lambda: _Pool(False))
    uses: int = 1


@dataclass(slots=True, eq=False)
class CachingAllocator:
    """One device's allocator. Bytes allocated are sizes of blocks, bytes reserved are of segments.

    `max_split_bytes` is torch's max_split_size, None for no limit, and may change at any time.
    """

    max_split_bytes: int | None = None
    allocated_bytes: int = field(default=0, init=False)
    allocated_peak_bytes: int = field(default=0, init=False)
    reserved_bytes: int = field(default=0, init=False)
    reserved_peak_bytes: int = field(default=0, init=False)
    _next_address: int = field(default=_FIRST_ADDRESS, init=False)
    _live: dict[int, _Block] = field(default_factory=dict, init=False)
    _idle: dict[int, _Block] = field(default_factory=dict, init=False)
    _common: _PoolPair = field(default_factory=_PoolPair, init=False)
    _private: dict[Hashable, _PoolPair] = field(default_factory=dict, init=False)
    _open: list[Hashable] = field(default_factory=list, init=False)

    def allocate(self, nbytes: int) -> int:
        """Take a block of at least so many bytes; its address, or 0 where none were asked for."""
        if nbytes <= 0:
            return 0
        size = max(MIN_BLOCK_BYTES, _rounded(nbytes, MIN_BLOCK_BYTES))
        pair = self._private[self._open[-1]] if self._open else self._common
        pool = pair.small if size <= SMALL_REQUEST_BYTES else pair.large
        block = self._best_fit(pool, size) or self._segment(pool, size)
        if self._splits(block, size):
            self._split(block, size)
        self._live[block.address] = block
        self.allocated_bytes += block.size
        self.allocated_peak_bytes = max(self.allocated_peak_bytes, self.allocated_bytes)
        return block.address

    def free(self, address: int) -> None:
        """Give a block back, to be merged with idle neighbours; 0 is no block and no error.

        Raises KeyError for an address that is not in use.
        """
        if address == 0:
            return
        block = self._live.pop(address)
        self.allocated_bytes -= block.size
        before, after = block.before, block.after
        if before is not None and before.address in self._idle:
            self._take(before)
            block.address, block.size = before.address, block.size + before.size
            block.before = before.before
            if block.before is not None:
                block.before.after = block
        if after is not None and after.address in self._idle:
            self._take(after)
            block.size += after.size
            block.after = after.after
            if block.after is not None:
                block.after.before = block
        self._put(block)

    def size_of(self, address: int) -> int:
        """Bytes of the block in use at an address: what was asked for, rounded and unsplit."""
        return self._live[address].size

    def empty_cache(self) -> None:
        """Return every wholly free segment to the device, as torch.cuda.empty_cache does.

        Private pools keep theirs while in use; so does the common pool while a private one is open.
        """
        if not self._open:
            self._release(self._common)
        for name, pair in list(self._private.items()):
            if pair.uses == 0 and self._release(pair):
                del self._private[name]

    def reset_peak(self) -> None:
        """Peaks start again at what is held now."""
        self.allocated_peak_bytes = self.allocated_bytes
        self.reserved_peak_bytes = self.reserved_bytes

    def begin_pool(self, name: Hashable) -> None:
        """Serve what follows from a pool of its own, as a graph capture does; adds one use of it.

        Pools may nest, the innermost serves. Raises ValueError for a pool that is already open or
        whose last use was given up: torch asserts both.
        """
        if name in self._open:
            raise ValueError(f"pool {name!r} is already open")
        pair = self._private.get(name)
        if pair is None:
            self._private[name] = _PoolPair()
        elif pair.uses == 0:
            raise ValueError(f"pool {name!r} was released and cannot be used again")
        else:
            pair.uses += 1
        self._open.append(name)

    def end_pool(self, name: Hashable) -> None:
        """Serve from the pool that was open before; raises ValueError if this one is not open."""
        self._open.remove(name)

    def release_pool(self, name: Hashable) -> None:
        """Give up one use, as a destroyed graph does; after the last, empty_cache may release."""
        pair = self._private.get(name)
        if pair is None or pair.uses == 0:
            raise ValueError(f"pool {name!r} has no use to give up")
        pair.uses -= 1

    def _best_fit(self, pool: _Pool, size: int) -> _Block | None:
        index = bisect_left(pool.free, (size, 0))
        if index == len(pool.free):
            return None
        found, address = pool.free[index]
        limit = self.max_split_bytes
        if limit is not None:
            if size < limit <= found:
                return None
            if size >= limit and found >= size + ROUNDING_WITHOUT_SPLIT_BYTES:
                return None
        del pool.free[index]
        return self._idle.pop(address)

    def _segment(self, pool: _Pool, size: int) -> _Block:
        if pool.is_small:
            nbytes = SMALL_SEGMENT_BYTES
        elif size < LARGE_REQUEST_BYTES:
            nbytes = LARGE_SEGMENT_BYTES
        else:
            nbytes = _rounded(size, LARGE_ROUNDING_BYTES)
        block = _Block(self._next_address, nbytes, pool)
        self._next_address += nbytes
        self.reserved_bytes += nbytes
        self.reserved_peak_bytes = max(self.reserved_peak_bytes, self.reserved_bytes)
        return block

    def _splits(self, block: _Block, size: int) -> bool:
        rest = block.size - size
        if block.pool.is_small:
            return rest >= MIN_BLOCK_BYTES
        below = self.max_split_bytes is None or size < self.max_split_bytes
        return below and rest > SMALL_REQUEST_BYTES

    def _split(self, block: _Block, size: int) -> None:
        after = block.after
        rest = _Block(block.address + size, block.size - size, block.pool, block, after)
        if after is not None:
            after.before = rest
        block.after, block.size = rest, size
        self._put(rest)

    def _put(self, block: _Block) -> None:
        self._idle[block.address] = block
        insort(block.pool.free, (block.size, block.address))

    def _take(self, block: _Block) -> None:
        del self._idle[block.address]
        free = block.pool.free
        del free[bisect_left(free, (block.size, block.address))]

    def _release(self, pair: _PoolPair) -> bool:
        """Return whole segments of both pools; whether nothing of them is left."""
        for pool in (pair.small, pair.large):
            for _, address in list(pool.free):
                block = self._idle[address]
                if block.before is None and block.after is None:
                    self._take(block)
                    self.reserved_bytes -= block.size
        pools = (pair.small, pair.large)
        return not any(block.pool in pools for block in self._live.values())


def parse_settings(text: str) -> int | None:
    """The max_split_bytes that a PYTORCH_ALLOC_CONF text sets, None where it sets none.

    As torch's `AcceleratorAllocatorConfig::parseArgs`: every text replaces the one before, so one
    without `max_split_size_mb` lifts the limit. Raises UsageError where the text cannot be meant,
    or changes rules that are not replayed (`expandable_segments:True` and the like).
    """
    limit: int | None = None
    # Commas also part the members of a list in brackets.
    for piece in filter(None, map(str.strip, re.split(r",(?![^\[]*\])", text))):
        key, _, value = (part.strip() for part in piece.partition(":"))
        if key == "max_split_size_mb":
            if not value.isdigit() or int(value) * MIB < LARGE_SEGMENT_BYTES:
                raise UsageError(f"{piece!r}: torch wants a whole number of at least 20")
            limit = int(value) * MIB
        elif (key == "expandable_segments" and value == "True") or key in _CHANGES_THE_RULES:
            raise UsageError(
                f"a rehearsal cannot follow torch's memory allocator with {piece!r}",
                hint="unset PYTORCH_ALLOC_CONF and PYTORCH_CUDA_ALLOC_CONF for the rehearsal",
            )
    return limit


def _rounded(nbytes: int, unit: int) -> int:
    return -(-nbytes // unit) * unit
