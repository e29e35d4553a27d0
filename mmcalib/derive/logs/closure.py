"""Whether a log's figures add up: what vLLM may use, less what it counted, is the KV cache."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from mmcalib.derive.logs.figures import Quantity
from mmcalib.sizes import GIB
from mmcalib.wording import gib

# Every figure is printed with two decimals of a GiB (utils/mem_utils.py, format_gib).
_ROUNDED_BYTES = 0.005 * GIB
# From 0.27.0, where vLLM's own accounting became exact: the estimate for graphs is in the peak
# (v1/worker/gpu_worker.py:526 of 0.27.0, :749 of 0.33.0).
_CONSUMED: tuple[Quantity, ...] = ("consumed", "activation_peak")
# To 0.26; the estimate for graphs, where one was made, is taken off beside them
# (v1/worker/gpu_worker.py:489 of 0.24.0).
_ITEMISED: tuple[Quantity, ...] = ("weights", "activation_peak", "non_torch")


@dataclass(frozen=True, slots=True)
class Closure:
    """One worker's sum, by the parts that its log itemises: `left_bytes` of `requested` remain,
    and `stated_bytes` is the KV cache that it states. `line` is where the parts stand.
    """

    parts: tuple[Quantity, ...]
    left_bytes: int
    stated_bytes: int
    process: str | None
    line: int

    @property
    def tolerance_bytes(self) -> int:
        """As far as rounding goes: of each part, of what was requested and of the result."""
        return round(_ROUNDED_BYTES * (len(self.parts) + 2)) + 1

    @property
    def closes(self) -> bool:
        return abs(self.left_bytes - self.stated_bytes) <= self.tolerance_bytes


@dataclass(frozen=True, slots=True)
class Stated:
    """What one line, or one worker's lines, itemise, in bytes."""

    figures: dict[Quantity, int]
    process: str | None
    line: int


def closures(
    stated: Iterable[Stated], beside: dict[str | None, dict[Quantity, int]], *, graphs: bool
) -> Iterator[Closure]:
    """The sums that can be made. `beside` has what each worker says elsewhere; `graphs`: the
    estimate for them was taken off.
    """
    for one in stated:
        known = beside.get(one.process, {}) | one.figures
        parts = _CONSUMED if "consumed" in one.figures else _ITEMISED
        if not {"requested", "kv_cache", *parts} <= known.keys():
            continue
        if parts == _ITEMISED and graphs and "cudagraph_estimate" in known:
            parts = (*parts, "cudagraph_estimate")
        left = known["requested"] - sum(known[part] for part in parts)
        yield Closure(parts, left, known["kv_cache"], one.process, one.line)
        # What the worker's own line says, where it is not what the line itself repeats.
        own = beside.get(one.process, {}).get("kv_cache", known["kv_cache"])
        if abs(own - known["kv_cache"]) > 2 * _ROUNDED_BYTES + 1:
            yield Closure(parts, left, own, one.process, one.line)


def closure_words(closure: Closure) -> str:
    """That it closes, or by how much it does not and what that may mean."""
    parts = " − ".join(_NAMES[part] for part in closure.parts)
    sum_of = f"requested − {parts} = {gib(closure.left_bytes)}"
    if closure.closes:
        return f"the log's figures close: {sum_of}, the KV cache that it states"
    apart = gib(abs(closure.left_bytes - closure.stated_bytes))
    where = f", {closure.process}" if closure.process else ""
    return (
        f"the log's figures do not close (line {closure.line}{where}): {sum_of}, and it states "
        f"{gib(closure.stated_bytes)} of KV cache, {apart} apart: a figure means something else, "
        "the log was edited, or two engines are mixed"
    )


_NAMES: dict[Quantity, str] = {
    "consumed": "consumed",
    "weights": "weights",
    "activation_peak": "peak activation",
    "non_torch": "non-torch",
    "cudagraph_estimate": "graphs",
}
