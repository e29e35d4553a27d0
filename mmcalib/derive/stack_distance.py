"""Items in the order of their last use, and the bytes of those used since any of them."""

from __future__ import annotations

from array import array

# Positions whose bytes are summed one by one: few enough to be quick, many enough to keep the tree
# above them small.
_BLOCK_BITS = 5
_BLOCK = 1 << _BLOCK_BITS


class Recency:
    """A list of sizes that grows at its end, with O(log n) sums from any position to the end.

    Positions count from 0; where an item was moved away 0 bytes are left. Blocks of sizes below, a
    Fenwick tree over the full blocks above.
    """

    def __init__(self) -> None:
        self.total = 0
        self.sizes = array("q")
        self._tree = [0]

    def append(self, nbytes: int) -> int:
        """Add an item at the end; returns its position."""
        self.total += nbytes
        return self._put(nbytes)

    def renew(self, position: int) -> int:
        """Move the item there to the end; the other positions stay. Returns its new one."""
        nbytes, self.sizes[position] = self.sizes[position], 0
        tree, end = self._tree, len(self._tree)
        node = (position >> _BLOCK_BITS) + 1
        while node < end:
            tree[node] -= nbytes
            node += node & -node
        return self._put(nbytes)

    def since(self, position: int) -> int:
        """Bytes of the items from this position on."""
        tree, node = self._tree, position >> _BLOCK_BITS
        older = sum(self.sizes[node << _BLOCK_BITS : position])
        while node:
            older += tree[node]
            node &= node - 1
        return self.total - older

    def _put(self, nbytes: int) -> int:
        sizes = self.sizes
        position = len(sizes)
        sizes.append(nbytes)
        if not (position + 1) % _BLOCK:
            # The node of a full block covers the nodes that end just before it as well.
            tree, node = self._tree, len(self._tree)
            covered, first, below = sum(sizes[-_BLOCK:]), node & (node - 1), node - 1
            while below > first:
                covered += tree[below]
                below &= below - 1
            tree.append(covered)
        return position
