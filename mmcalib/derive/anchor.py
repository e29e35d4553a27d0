"""A rehearsal held against a log of the same configuration, and other rehearsals moved by what
lies between the two: the log's figures plus the difference of two rehearsals.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal

from mmcalib.derive.logs import StartupLog
from mmcalib.domain.rehearsed import Rehearsed
from mmcalib.sizes import GIB

# Apart by more than this, a rehearsed KV cache is not the log's: the mean absolute error of the KV
# pool where log and rehearsal share the code path (reports/memory-accuracy.md, Summary: 0.12 GiB
# of 4 cases; text-only controls stand apart there). vLLM's own repeatability is 0.03 GiB.
TOLERANCE_BYTES: Final = round(0.12 * GIB)
# Logs round to 0.01 GiB, which in a small KV cache is much of a token's share.
_ROUNDED_BYTES: Final = 0.005 * GIB

PartName = Literal[
    "requested",
    "weights",
    "activation peak",
    "activation peak and CUDA graphs",
    "outside torch, and buffers",
    "CUDA graphs",
    "all but weights and KV cache",
    "KV cache",
    "KV cache of a token",
    "encoder budget",
]
Unit = Literal["bytes", "tokens"]


@dataclass(frozen=True, slots=True)
class Part:
    """One line of the account in the log and in the rehearsal; `tolerance` in the same unit."""

    name: PartName
    log: int
    rehearsed: int
    tolerance: int = TOLERANCE_BYTES
    unit: Unit = "bytes"

    @property
    def difference(self) -> int:
        """Rehearsed − log."""
        return self.rehearsed - self.log

    @property
    def apart(self) -> bool:
        return abs(self.difference) > self.tolerance


def parts(log: StartupLog, found: Rehearsed) -> list[Part]:
    """Every line that the log states, or that follows from what it states."""
    beside = found.non_torch_bytes + found.buffers_bytes
    graphs = found.cudagraph_bytes
    every = [
        _part("requested", log.requested_bytes, found.requested_bytes),
        _part("weights", log.weights_bytes, found.weights_bytes),
        _part("activation peak", log.activation_alone_bytes, found.activation_peak_bytes),
        _part("outside torch, and buffers", log.non_torch_bytes, beside),
        _part("CUDA graphs", log.reserved_graphs_bytes, graphs),
        _part("KV cache", log.kv_cache_bytes, found.kv_cache_bytes),
        *_whole(log, found),
    ]
    order: list[PartName] = [*PartName.__args__]  # type: ignore[attr-defined]
    return sorted((one for one in every if one), key=lambda one: order.index(one.name))


def _whole(log: StartupLog, found: Rehearsed) -> list[Part | None]:
    """What the log states of several together, and what is no memory."""
    activation, graphs = found.activation_peak_bytes, found.cudagraph_bytes
    peak = log.activation_peak_bytes if log.activation_alone_bytes is None else None
    rest = found.requested_bytes - found.weights_bytes - found.kv_cache_bytes
    return [
        _part("activation peak and CUDA graphs", peak, activation + graphs),
        _part("all but weights and KV cache", _rest(log, found), rest),
        _token(log, found),
        _budget(log, found),
    ]


def _rest(log: StartupLog, found: Rehearsed) -> int | None:
    """Where nothing is itemised; of the rehearsed GPU where the log leaves out its memory."""
    requested = log.requested_bytes
    if requested is None and log.gpu_memory_utilization is not None:
        requested = round(found.total_bytes * log.gpu_memory_utilization)
    if log.activation_peak_bytes is not None or requested is None:
        return None
    if log.weights_bytes is None or log.kv_cache_bytes is None:
        return None
    return requested - log.weights_bytes - log.kv_cache_bytes


def _part(name: PartName, log: int | None, found: int) -> Part | None:
    return None if log is None else Part(name, log, found)


def _token(log: StartupLog, found: Rehearsed) -> Part | None:
    if not log.kv_cache_tokens or not log.kv_cache_bytes or log.kv_cache_bytes < 0:
        return None
    # Layers that keep a window count for less than one of all tokens.
    known = found.kv_cache_tokens and found.kv_cache_bytes > 0
    rehearsed = (
        found.kv_cache_bytes / found.kv_cache_tokens
        if known and found.kv_cache_tokens
        else found.kv_bytes_per_token
    )
    share = log.kv_cache_bytes / log.kv_cache_tokens
    # A block of tokens at most is lost, and what the log has rounded.
    tolerance = rehearsed * 0.01 + _ROUNDED_BYTES / log.kv_cache_tokens
    return Part("KV cache of a token", round(share), round(rehearsed), round(tolerance) + 1)


def _budget(log: StartupLog, found: Rehearsed) -> Part | None:
    if log.encoder is None or found.budget is None:
        return None
    tokens = found.budget.encoder_budget_tokens
    return Part("encoder budget", log.encoder.tokens, tokens, tolerance=0, unit="tokens")


@dataclass(frozen=True, slots=True)
class Anchor:
    """What a log states of a configuration, and `base`, what the rehearsal finds of the same."""

    log: StartupLog
    base: Rehearsed

    def moved(self, found: Rehearsed) -> Rehearsed:
        """Another rehearsal as it stands beside the log: each figure that the log states, plus
        what was rehearsed to change. What the log does not state stays as rehearsed.
        """
        log, base = self.log, self.base

        def moved(stated: int | None, then: int, now: int) -> int:
            return now if stated is None else stated + now - then

        alone = log.activation_alone_bytes
        graphs = log.reserved_graphs_bytes
        stated = log.non_torch_bytes is not None
        kv_cache = moved(log.kv_cache_bytes, base.kv_cache_bytes, found.kv_cache_bytes)
        return replace(
            self._capacity(found, kv_cache),
            kv_cache_bytes=kv_cache,
            requested_bytes=moved(log.requested_bytes, base.requested_bytes, found.requested_bytes),
            weights_bytes=moved(log.weights_bytes, base.weights_bytes, found.weights_bytes),
            activation_peak_bytes=moved(
                alone, base.activation_peak_bytes, found.activation_peak_bytes
            ),
            cudagraph_bytes=moved(graphs, base.cudagraph_bytes, found.cudagraph_bytes),
            # A log has no name for buffers: they are in what is not torch's, or in the peak.
            non_torch_bytes=moved(
                log.non_torch_bytes,
                base.non_torch_bytes + base.buffers_bytes,
                found.non_torch_bytes + (found.buffers_bytes if stated else 0),
            ),
            buffers_bytes=0 if stated else found.buffers_bytes,
        )

    def _capacity(self, found: Rehearsed, kv_cache_bytes: int) -> Rehearsed:
        """Tokens and requests in so many bytes: in proportion, as vLLM's layouts have it, and as
        much more or less as the log has them in its own.
        """
        tokens, requests = _held(found, kv_cache_bytes)
        of_base = _held(self.base, self.log.kv_cache_bytes or 0)
        share = _scale(self.log.kv_cache_tokens, of_base[0])
        tokens *= share
        requests *= _scale(self.log.max_concurrency, of_base[1])
        held = replace(found, kv_bytes_per_token=round(found.kv_bytes_per_token / share))
        if kv_cache_bytes <= 0:
            problem = "nothing is left for the KV cache, by the log and the rehearsed difference"
        elif requests < 1:
            problem = (
                "the KV cache does not hold one request of full length, by the log and the "
                "rehearsed difference"
            )
        else:
            # Printed with two decimals; what is rounded is no more than the log has.
            return replace(
                held, kv_cache_tokens=round(tokens), max_concurrency=requests, problem=""
            )
        return replace(held, kv_cache_tokens=None, max_concurrency=None, problem=problem)


def _held(found: Rehearsed, kv_cache_bytes: int) -> tuple[float, float]:
    """Tokens and requests of full length that a rehearsed layout holds in so many bytes."""
    if found.kv_cache_tokens and found.max_concurrency and found.kv_cache_bytes > 0:
        share = kv_cache_bytes / found.kv_cache_bytes
        return found.kv_cache_tokens * share, found.max_concurrency * share
    tokens = kv_cache_bytes / max(found.kv_bytes_per_token, 1)
    length = found.budget.max_model_len if found.budget else 0
    return tokens, tokens / length if length else 0.0


def _scale(stated: float | None, held: float) -> float:
    return stated / held if stated and held > 0 else 1.0
