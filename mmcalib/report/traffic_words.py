"""Serving in words: rows, the highest step and the verdict, for terminal, Markdown and page."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from mmcalib import wording
from mmcalib.results.memory import HighestTrafficStep, ServedTraffic, TrafficFigures

# Requests that are named of the highest step.
_NAMED = 4
# Of a timeline as a table.
HEAD: Final = ("step", "highest", "held", "encoder cache alive", "tokens", "running", "waiting")
_MOST_ROWS: Final = 60


def timeline_rows(found: TrafficFigures) -> Iterator[tuple[str, ...]]:
    """The timeline, thinned out for reading: every n-th of its points."""
    every = -(-len(found.timeline) // _MOST_ROWS) or 1
    for one in found.timeline[::every]:
        yield (
            wording.number(one.step),
            *(wording.gib(nbytes) for nbytes in (one.peak_bytes, one.held_bytes, one.alive_bytes)),
            *(wording.number(count) for count in (one.tokens, one.scheduled, one.waiting)),
        )


def traffic_rows(found: TrafficFigures) -> list[tuple[str, str, str]]:
    """(what, how much, more about it)."""
    gib, number = wording.gib, wording.number
    cache = found.encoder_cache
    return [
        ("highest step", gib(found.peak_bytes), "rehearsed"),
        ("reserved at startup", gib(found.reserved_bytes), "rehearsed"),
        ("left outside", gib(found.outside_bytes), "by gpu_memory_utilization"),
        ("steps", number(found.steps), f"{number(found.concurrency)} requests at once at most"),
        (
            "KV blocks, most",
            f"{number(found.most_kv_blocks)} of {number(found.kv_blocks)}",
            f"{number(found.preemptions)} preempted",
        ),
        (
            "encoder cache, most",
            f"{number(cache.used_tokens)} of {number(cache.tokens)}",
            f"tokens: {gib(cache.logical_bytes)}, and {gib(cache.alive_bytes)} kept alive",
        ),
        (
            "items encoded",
            number(found.encoded_items),
            f"{number(found.reused_items)} found in the cache, "
            f"{number(found.encoder_waits)} held up by the encoder",
        ),
        ("prompt tokens reused", number(found.cached_tokens), "prefix cache"),
    ]


def both(served: ServedTraffic) -> list[tuple[str, ...]]:
    """The rows of the calibrated configuration, with those of the default beside them."""
    rows: list[tuple[str, ...]] = list(traffic_rows(served.calibrated))
    if served.default is None:
        return rows
    return [
        (*row, *other[1:]) for row, other in zip(rows, traffic_rows(served.default), strict=True)
    ]


def highest_line(highest: HighestTrafficStep) -> str:
    """What the highest step did, and for whom."""
    said = f"Step {wording.number(highest.number)}: {wording.number(highest.tokens)} tokens"
    if highest.encoder_tokens:
        said += f", beside {wording.number(highest.encoder_tokens)} that the encoder makes"
    named = highest.encoding or highest.requests
    more = f" and {len(named) - _NAMED} more" if len(named) > _NAMED else ""
    return f"{said}, for {', '.join(named[:_NAMED])}{more}"


def traffic_sentence(found: TrafficFigures) -> str:
    """The verdict as a sentence."""
    line = traffic_line(found)
    return f"{line[0].upper()}{line[1:]}."


def traffic_line(found: TrafficFigures) -> str:
    """The verdict in a line."""
    left = wording.gib(abs(found.margin_bytes))
    if found.status == "pass" and found.margin_bytes >= 0:
        return f"every step stays within what startup reserved: {left} are never used"
    over = f"the highest step takes {left} more than startup reserved"
    if found.status == "pass":
        return f"{over}, within vLLM's own slack"
    if found.status == "warn":
        return f"{over}: it finds room in what gpu_memory_utilization leaves to others"
    cure = ""
    if found.fitting_utilization is not None:
        cure = f"; gpu_memory_utilization {found.fitting_utilization:g} would leave enough"
    return f"{over}, and that is more than is left on the GPU: out of memory{cure}"
