"""PyTorch's CUDA caching allocator with `expandable_segments:True`: one segment for small blocks
and one for large ones, to which pages are added where they end and in which they may be missing.

The rules are those of `find_expandable_block`, `try_allocate_expandable_block`, `map_block`,
`unmap_block` and `ExpandableSegment` in c10/cuda/CUDACachingAllocator.cpp. No block is given whole
because little of it would be left, which is what this setting changes in what torch reports as
allocated.
"""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass, field

from mmcalib.child.rehearsal.device.allocator import (
    LARGE_SEGMENT_BYTES,
    MIN_BLOCK_BYTES,
    SMALL_SEGMENT_BYTES,
    Block,
    CachingAllocator,
    Pool,
    rounded,
)

# Addresses of one segment. torch reserves 1 1/8 of the GPU's memory, and another segment where
# nothing fits between what is in use; here one is enough for all of it.
_SPACE_BYTES = LARGE_SEGMENT_BYTES << 24


@dataclass(slots=True, eq=False)
class ExpandingAllocator(CachingAllocator):
    """One device's allocator. Bytes reserved are of pages: 2 MiB for small blocks, 20 for large."""

    # By pool, in the order of their addresses.
    _unmapped: dict[Pool, list[tuple[int, Block]]] = field(default_factory=dict, init=False)

    def empty_cache(self) -> None:
        """Return the pages that lie wholly in free blocks."""
        for pool in (self._small, self._large):
            for _, address in list(pool.free):
                self._unmap(self._idle[address])

    def _index(self, pool: Pool, size: int) -> int:
        """A block that could grow counts as large as it could be."""
        index = CachingAllocator._index(self, pool, size)
        while index + 1 < len(pool.free) and self._room(pool, index + 1) < self._room(pool, index):
            index += 1
        return index

    def _room(self, pool: Pool, index: int) -> int:
        size, address = pool.free[index]
        after = self._idle[address].after
        return size if after is None or after.mapped else size + after.size

    def _splits(self, block: Block, size: int) -> bool:
        return block.size - size >= MIN_BLOCK_BYTES

    def _segment(self, pool: Pool, size: int) -> Block:
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
        """The first place where so much lies together, of which only a part may be mapped."""
        places = self._unmapped.setdefault(pool, [])
        for _, place in places:
            before = place.before
            if before is not None and before.address in self._idle:
                place = before
            if self._free_bytes(place, size) >= size:
                return place
        address = rounded(self._next_address, LARGE_SEGMENT_BYTES)
        self._next_address = address + _SPACE_BYTES
        space = Block(address, _SPACE_BYTES, pool, mapped=False)
        insort(places, (address, space))
        return space

    def _free_bytes(self, block: Block, enough: int) -> int:
        found, at = 0, block
        while found < enough:
            found += at.size
            if at.after is None or at.after.address in self._live:
                return found
            at = at.after
        return found

    def _map(self, block: Block, size: int) -> None:
        """Put pages behind at least `size` of a block that has none, and merge it with what is free
        beside it.
        """
        places = self._unmapped[block.pool]
        places.remove((block.address, block))
        nbytes = min(rounded(size, _page_bytes(block.pool)), block.size)
        if nbytes < block.size:
            rest = block.part(nbytes, mapped=False)
            insort(places, (rest.address, rest))
        block.mapped = True
        self._merge(block)
        self._put(block)
        self.reserved_bytes += nbytes
        self.reserved_peak_bytes = max(self.reserved_peak_bytes, self.reserved_bytes)

    def _unmap(self, block: Block) -> None:
        """Return the pages that lie wholly in a free block."""
        page = _page_bytes(block.pool)
        first = rounded(block.address, page)
        last = (block.address + block.size) // page * page
        if first >= last:
            return
        self._take(block)
        whole = block
        if first > block.address:
            whole = block.part(first - block.address, mapped=True)
            self._put(block)
        if last < whole.address + whole.size:
            self._put(whole.part(last - whole.address, mapped=True))
        self.reserved_bytes -= whole.size
        whole.mapped = False
        places = self._unmapped[block.pool]
        for beside in (whole.before, whole.after):
            if beside is not None and not beside.mapped:
                places.remove((beside.address, beside))
                whole.join(beside)
        insort(places, (whole.address, whole))


def _page_bytes(pool: Pool) -> int:
    return SMALL_SEGMENT_BYTES if pool.is_small else LARGE_SEGMENT_BYTES
