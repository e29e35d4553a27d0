"""PyTorch's CUDA caching allocators, replayed on addresses without memory.

torch reports the size of blocks, not of tensors, as allocated, and vLLM subtracts the size of
segments. Both depend on the order of requests. The rules are those of `DeviceCachingAllocator` in
c10/cuda/CUDACachingAllocator.cpp (`round_size`, `get_pool`, `get_free_block`,
`get_allocation_size`, `should_split`, `alloc_found_block`, `free_block`, `try_merge_blocks`,
`release_cached_blocks`). They are the same from torch 2.8 to 2.13 for the native backend with one
stream. Not replayed: private pools of CUDA graphs, other streams' blocks that wait for events, the
garbage collection threshold, rounding to powers of two, and what torch frees before an OOM error.
"""

from __future__ import annotations

import re
from bisect import bisect_left, insort
from collections.abc import Mapping
from dataclasses import dataclass, field
from operator import attrgetter

from mmcalib.errors import UsageError
from mmcalib.text import MIB

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

# The first segment's address. 0 means no memory.
_FIRST_ADDRESS = 1 << 30


@dataclass(slots=True, eq=False)
class Pool:
    """Free blocks by size, then address, the search order for the best fit."""

    # Bytes of its usual segment, or of a page of a segment that expands.
    segment_bytes: int
    free: list[tuple[int, int]] = field(default_factory=list)
    # Blocks of segments that expand, by address.
    unmapped: list[Block] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Block:
    """A part of a segment. Only `mapped` addresses have memory."""

    address: int
    size: int
    pool: Pool
    before: Block | None = None
    after: Block | None = None
    mapped: bool = True

    def split(self, size: int, *, mapped: bool) -> Block:
        """Shorten this block to `size`, and return the rest as a new block."""
        rest = Block(
            self.address + size, self.size - size, self.pool, self, self.after, mapped=mapped
        )
        if self.after is not None:
            self.after.before = rest
        self.after, self.size = rest, size
        return rest

    def merge(self, other: Block) -> None:
        """Merge a neighbour into this block."""
        if other is self.before:
            self.address, self.before = other.address, other.before
            if self.before is not None:
                self.before.after = self
        else:
            self.after = other.after
            if self.after is not None:
                self.after.before = self
        self.size += other.size


@dataclass(slots=True, eq=False)
class CachingAllocator:
    """One device's allocator; allocated bytes are of blocks, reserved bytes of segments."""

    # torch's max_split_size (None: no limit), which may change at any time.
    max_split_bytes: int | None = None
    allocated_bytes: int = field(default=0, init=False)
    allocated_peak_bytes: int = field(default=0, init=False)
    reserved_bytes: int = field(default=0, init=False)
    reserved_peak_bytes: int = field(default=0, init=False)
    _next_address: int = field(default=_FIRST_ADDRESS, init=False)
    _live: dict[int, Block] = field(default_factory=dict, init=False)
    _idle: dict[int, Block] = field(default_factory=dict, init=False)
    _small: Pool = field(default_factory=lambda: Pool(SMALL_SEGMENT_BYTES), init=False)
    _large: Pool = field(default_factory=lambda: Pool(LARGE_SEGMENT_BYTES), init=False)

    def allocate(self, nbytes: int) -> int:
        """Allocate a block of at least `nbytes` and return its address; 0 for 0 bytes."""
        if nbytes <= 0:
            return 0
        size = max(MIN_BLOCK_BYTES, round_up(nbytes, MIN_BLOCK_BYTES))
        pool = self._small if size <= SMALL_REQUEST_BYTES else self._large
        block = self._take_best_fit(pool, size) or self._add_segment(pool, size)
        if self._should_split(block, size):
            self._put(block.split(size, mapped=True))
        self._live[block.address] = block
        self.allocated_bytes += block.size
        self.allocated_peak_bytes = max(self.allocated_peak_bytes, self.allocated_bytes)
        return block.address

    def free(self, address: int) -> None:
        """Free a block (0: no block) and merge idle neighbours. Raises KeyError if not in use."""
        if address == 0:
            return
        block = self._live.pop(address)
        self.allocated_bytes -= block.size
        self._merge(block)
        self._put(block)

    def size_of(self, address: int) -> int:
        """Return the bytes of the block at an address: the request, rounded, plus unsplit rest."""
        return self._live[address].size

    def empty_cache(self) -> None:
        """Return what the device can take back, as torch.cuda.empty_cache does."""
        for pool in (self._small, self._large):
            for _, address in list(pool.free):
                self._give_back(self._idle[address])

    def reset_peak(self) -> None:
        self.allocated_peak_bytes = self.allocated_bytes
        self.reserved_peak_bytes = self.reserved_bytes

    def _index(self, pool: Pool, size: int) -> int:
        """Return the index of the best fitting free block."""
        return bisect_left(pool.free, (size, 0))

    def _take_best_fit(self, pool: Pool, size: int) -> Block | None:
        index = self._index(pool, size)
        if index == len(pool.free):
            return None
        nbytes, address = pool.free[index]
        limit = self.max_split_bytes
        most = nbytes - ROUNDING_WITHOUT_SPLIT_BYTES
        if limit is not None and (size < limit <= nbytes or limit <= size <= most):
            return None
        del pool.free[index]
        return self._idle.pop(address)

    def _add_segment(self, pool: Pool, size: int) -> Block:
        nbytes = pool.segment_bytes
        if size >= LARGE_REQUEST_BYTES:
            nbytes = round_up(size, LARGE_ROUNDING_BYTES)
        block = Block(self._next_address, nbytes, pool)
        self._next_address += nbytes
        self.reserved_bytes += nbytes
        self.reserved_peak_bytes = max(self.reserved_peak_bytes, self.reserved_bytes)
        return block

    def _give_back(self, block: Block) -> None:
        """Return a free block if it is a whole segment."""
        if block.before is None and block.after is None:
            self._take(block)
            self.reserved_bytes -= block.size

    def _should_split(self, block: Block, size: int) -> bool:
        rest = block.size - size
        if block.pool is self._small:
            return rest >= MIN_BLOCK_BYTES
        below = self.max_split_bytes is None or size < self.max_split_bytes
        return below and rest > SMALL_REQUEST_BYTES

    def _merge(self, block: Block) -> None:
        for neighbour in (block.before, block.after):
            if neighbour is not None and neighbour.address in self._idle:
                self._take(neighbour)
                block.merge(neighbour)

    def _put(self, block: Block) -> None:
        self._idle[block.address] = block
        insort(block.pool.free, (block.size, block.address))

    def _take(self, block: Block) -> None:
        del self._idle[block.address]
        free = block.pool.free
        del free[bisect_left(free, (block.size, block.address))]


def round_up(nbytes: int, unit: int) -> int:
    return -(-nbytes // unit) * unit


# Addresses of one segment. torch reserves 1 1/8 of the GPU's memory, and a new segment if nothing
# fits between blocks in use; this one is large enough for everything.
_SPACE_BYTES = LARGE_SEGMENT_BYTES << 24


class ExpandingAllocator(CachingAllocator):
    """Allocator with `expandable_segments:True`: a segment for small and one for large blocks.

    A segment grows by pages at its end, and may have unmapped pages inside. Reserved bytes are of
    pages: 2 MiB for small blocks, 20 for large. The rules are those of `find_expandable_block`,
    `try_allocate_expandable_block`, `map_block`, `unmap_block` and `ExpandableSegment`. A block is
    always split, even if little remains; this changes what torch reports as allocated.
    """

    def _index(self, pool: Pool, size: int) -> int:
        """Return the index of the best fitting free block; a block counts with its growth."""
        index = super()._index(pool, size)
        while index + 1 < len(pool.free) and self._room(pool, index + 1) < self._room(pool, index):
            index += 1
        return index

    def _room(self, pool: Pool, index: int) -> int:
        size, address = pool.free[index]
        after = self._idle[address].after
        return size if after is None or after.mapped else size + after.size

    def _should_split(self, block: Block, size: int) -> bool:
        return block.size - size >= MIN_BLOCK_BYTES

    def _add_segment(self, pool: Pool, size: int) -> Block:
        block = self._candidate(pool, size)
        if not block.mapped:
            self._map(block, min(block.size, size))
        while block.size < size:
            after = block.after
            assert after is not None
            self._map(after, min(after.size, size - block.size))
            block = after
        self._take(block)
        return block

    def _candidate(self, pool: Pool, size: int) -> Block:
        """Return the first place with `size` contiguous free bytes, mapped or not."""
        for place in pool.unmapped:
            before = place.before
            if before is not None and before.address in self._idle:
                place = before
            if self._free_bytes(place, size) >= size:
                return place
        address = round_up(self._next_address, LARGE_SEGMENT_BYTES)
        self._next_address = address + _SPACE_BYTES
        space = Block(address, _SPACE_BYTES, pool, mapped=False)
        pool.unmapped.append(space)
        return space

    def _free_bytes(self, block: Block, enough: int) -> int:
        nbytes, at = 0, block
        while nbytes < enough:
            nbytes += at.size
            if at.after is None or at.after.address in self._live:
                return nbytes
            at = at.after
        return nbytes

    def _map(self, block: Block, size: int) -> None:
        """Map at least `size` of an unmapped block and merge it with its free neighbours."""
        places = block.pool.unmapped
        places.remove(block)
        nbytes = min(round_up(size, block.pool.segment_bytes), block.size)
        if nbytes < block.size:
            insort(places, block.split(nbytes, mapped=False), key=_address)
        block.mapped = True
        self._merge(block)
        self._put(block)
        self.reserved_bytes += nbytes
        self.reserved_peak_bytes = max(self.reserved_peak_bytes, self.reserved_bytes)

    def _give_back(self, block: Block) -> None:
        """Return the pages that only this free block uses."""
        page = block.pool.segment_bytes
        first = round_up(block.address, page)
        last = (block.address + block.size) // page * page
        if first >= last:
            return
        self._take(block)
        whole = block
        if first > block.address:
            whole = block.split(first - block.address, mapped=True)
            self._put(block)
        if last < whole.address + whole.size:
            self._put(whole.split(last - whole.address, mapped=True))
        self.reserved_bytes -= whole.size
        whole.mapped = False
        places = block.pool.unmapped
        for neighbour in (whole.before, whole.after):
            if neighbour is not None and not neighbour.mapped:
                places.remove(neighbour)
                whole.merge(neighbour)
        insort(places, whole, key=_address)


_address = attrgetter("address")


# The first wins. The second is the name before torch 2.9, which most servers still set.
VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
_UNSUPPORTED = (
    *("large_segment_size_mb", "max_non_split_rounding_mb", "roundup_power2_divisions"),
    *("garbage_collection_threshold", "backend"),
)


@dataclass(frozen=True, slots=True)
class AllocatorSettings:
    """Settings of torch's allocator; None means no limit, or not set."""

    max_split_bytes: int | None = None
    expandable: bool | None = None


def parse_settings(text: str) -> AllocatorSettings:
    """Parse a setting like torch's `AcceleratorAllocatorConfig::parseArgs`.

    A text without `max_split_size_mb` removes the limit; one without `expandable_segments` keeps
    the current value. Raises UsageError for invalid texts and for rules that are not replayed.
    """
    limit, expandable = None, None
    # Commas also separate the members of a list in brackets.
    for piece in filter(None, map(str.strip, re.split(r",(?![^\[]*\])", text))):
        key, _, value = (part.strip() for part in piece.partition(":"))
        if key == "max_split_size_mb":
            if not value.isdigit() or int(value) * MIB < LARGE_SEGMENT_BYTES:
                raise UsageError(f"{piece!r}: torch requires a whole number of at least 20")
            limit = int(value) * MIB
        elif key == "expandable_segments":
            if value not in ("True", "False"):
                raise UsageError(f"{piece!r}: torch requires True or False")
            expandable = value == "True"
        elif key in _UNSUPPORTED and (key, value) != ("backend", "native"):
            raise unsupported_setting(piece)
    return AllocatorSettings(limit, expandable)


def unsupported_setting(piece: str) -> UsageError:
    return UsageError(
        f"cannot rehearse torch's memory allocator with {piece!r}",
        hint="unset PYTORCH_ALLOC_CONF and PYTORCH_CUDA_ALLOC_CONF for the rehearsal",
    )


def settings_from_environment(environment: Mapping[str, str]) -> AllocatorSettings:
    """Return the settings that torch starts with. Raises UsageError like `parse_settings`."""
    texts = (environment[name] for name in VARIABLES if name in environment)
    return parse_settings(next(texts, ""))
