"""What cached encoder outputs pin: each is a view, and keeps the storage of its whole batch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Pinned:
    """At most so many tokens' storage lives for a cache of `cache_tokens`, in `batches` batches of
    which at least one item each is still cached. `known`: the order of the requests says which
    items are asked for again.
    """

    tokens: int
    cache_tokens: int
    batches: int
    known: bool


def pinned(kept: Iterable[int], cache_tokens: int, batch_tokens: int, *, known: bool) -> Pinned:
    """`kept` are the embeds of the distinct items that may stay while others come and go; one batch
    has at most `batch_tokens`.

    When a batch is encoded the cache holds it whole, and one item at least of each batch that is
    still alive later: so the j-th has room for what the j smallest items before it leave. What is
    never asked for again goes in the order in which it came, and pins one batch more at most.
    """
    spent, tokens, batches = 0, 0, 0
    for size in sorted(kept):
        most = min(batch_tokens, cache_tokens - spent)
        if most < size:
            break
        tokens += most
        batches += 1
        spent += size
    rest = min(batch_tokens, cache_tokens) + cache_tokens - spent if known else 0
    return Pinned(max(tokens + rest, cache_tokens), cache_tokens, batches, known)


def repeated(requests: Iterable[Sequence[int]]) -> Iterator[int]:
    """The items that more than one request names."""
    seen, given = set[int](), set[int]()
    for request in requests:
        for item in set(request):
            if item in seen and item not in given:
                given.add(item)
                yield item
            seen.add(item)
