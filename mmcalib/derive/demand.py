"""What serving may take at once above the loaded model, part by part, beside what the encoder cache
still holds (R4).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from mmcalib.derive.logs import OutOfMemory, Phase
from mmcalib.domain.rehearsed import Rehearsed
from mmcalib.domain.shapes import Modality
from mmcalib.releases.constants import CONTEXT_BYTES, VLLM_SLACK_BYTES


@dataclass(frozen=True, slots=True)
class Resident:
    """Outputs of items that the encoder cache keeps: those of finished requests stay until they
    are evicted (`EncoderCacheManager`, vllm/v1/core/encoder_cache_manager.py).
    """

    tokens: int = 0
    bytes_per_token: int = 0

    @property
    def nbytes(self) -> int:
        return self.tokens * self.bytes_per_token


@dataclass(frozen=True, slots=True)
class WorstStep:
    """The most that one step may encode of one modality: tokens, and bytes above the model and the
    workspaces that other kernels keep, of `kept_bytes`.

    Where the corpus' own items take more than vLLM's dummies of as many tokens, `items` like
    `exemplar` are in it.
    """

    modality: Modality
    tokens: int
    peak_bytes: int
    resident: Resident = field(default_factory=Resident)
    items: int = 0
    exemplar: str = ""
    kept_bytes: int = 0

    @property
    def nbytes(self) -> int:
        return self.peak_bytes + self.kept_bytes + self.resident.nbytes


@dataclass(frozen=True, slots=True)
class _FullStep:
    """A step of so many tokens, and what it takes beside what is resident."""

    tokens: int
    peak_bytes: int
    resident: Resident

    @property
    def nbytes(self) -> int:
        return self.peak_bytes + self.resident.nbytes


@dataclass(frozen=True, slots=True)
class LanguageStep(_FullStep):
    """A full step of the language model and its sampler, beside a full encoder cache."""


@dataclass(frozen=True, slots=True)
class PromptsStep(_FullStep):
    """The same as serving runs it, full of so many prompts, of a model with recurrent layers:
    vLLM's profile leaves them out. A single prompt of as many tokens takes `alone_bytes`; the step
    that is profiled in its place, `profiled_bytes`.
    """

    prompts: int
    alone_bytes: int
    profiled_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Merge(_FullStep):
    """A step full of encoder outputs, written among the embeddings of the text."""


Demand = WorstStep | LanguageStep | PromptsStep | Merge


@dataclass(frozen=True, slots=True)
class Shortfall:
    """Bytes that the costliest demand takes beyond what is reserved: by the profile, and of it
    `spare_bytes` by a KV cache that was given less. `outside_bytes` of the GPU are left free by
    `gpu_memory_utilization`.
    """

    reserved_bytes: int
    worst: Demand
    outside_bytes: int
    spare_bytes: int = 0

    @property
    def nbytes(self) -> int:
        return self.worst.nbytes - self.reserved_bytes

    @property
    def slack_bytes(self) -> int:
        """vLLM's own slack, as far as `gpu_memory_utilization` and the CUDA context leave it."""
        return min(VLLM_SLACK_BYTES, max(0, self.outside_bytes - CONTEXT_BYTES))

    @property
    def passes(self) -> bool:
        return self.nbytes <= self.slack_bytes

    @property
    def is_tight(self) -> bool:
        """Whether less than vLLM's own slack is left beside the demand and the CUDA context."""
        left = self.slack_bytes - self.nbytes
        return self.slack_bytes < VLLM_SLACK_BYTES and left < VLLM_SLACK_BYTES

    @property
    def fits_outside(self) -> bool:
        """Whether the shortfall only eats the margin that vLLM was told to leave."""
        return self.nbytes <= self.outside_bytes


def worst_step(
    modality: Modality,
    peak_bytes: int,
    profiled_tokens: int,
    limit_tokens: int,
    resident: Resident | None = None,
    kept_bytes: int = 0,
) -> WorstStep:
    """A step full to the encoder budget, from one of whole items: smaller items fill the rest, and
    take no more for each token than the largest.
    """
    share = limit_tokens / profiled_tokens if profiled_tokens else 1.0
    peak = round(peak_bytes * max(1.0, share))
    return WorstStep(modality, limit_tokens, peak, resident or Resident(), kept_bytes=kept_bytes)


# Phases that end before the KV cache is allocated: a smaller one makes no room in them.
_BEFORE_KV_CACHE: frozenset[Phase | None] = frozenset(
    {"start", "weights", "profile", "profile: encoder", "profile: language model"}
)


@dataclass(frozen=True, slots=True)
class ObservedOom:
    """A server that ran out of GPU memory, compared with a rehearsal of its own configuration.

    `outside_torch_bytes` = total − free − what PyTorch held, allocated or cached. `step_bytes` is
    what the step held above the model and the KV cache, plus what it wanted; as many bytes as
    `step_tokens` of `step_modality` take, `step_items` of its largest, where one step encodes at
    most `step_limit_tokens` (None and 0: not an encoder step, or the message leaves it out).
    `lacking_bytes` is the room that the configuration needs beyond what it had, `spare_bytes` the
    room that its rehearsal has.
    """

    phase: Phase | None
    wanted_bytes: int | None
    free_bytes: int | None
    outside_torch_bytes: int | None
    step_bytes: int | None
    step_modality: Modality | None
    step_tokens: int
    step_items: int
    step_limit_tokens: int
    lacking_bytes: int
    spare_bytes: int

    @property
    def before_kv_cache(self) -> bool:
        return self.phase in _BEFORE_KV_CACHE

    def lacking(self, found: Rehearsed, shortfall: Shortfall | None) -> int:
        """Bytes of room that another configuration of the server lacks; 0 or less: it has enough.

        The same server lacks less by as much as the rehearsal of the configuration has more room.
        """
        return self.lacking_bytes + self.spare_bytes - _spare(self.phase, found, shortfall)


def _spare(phase: Phase | None, found: Rehearsed, shortfall: Shortfall | None) -> int:
    """Room that a rehearsal has: beside the profile before there is a KV cache, else beside the
    costliest demand, on the whole GPU.
    """
    if phase in _BEFORE_KV_CACHE:
        held = found.weights_bytes + found.buffers_bytes + found.activation_peak_bytes
        return found.total_bytes - held
    free = found.total_bytes - found.requested_bytes + found.non_torch_bytes
    return free - (shortfall.nbytes if shortfall else 0)


def observed_oom(
    cause: OutOfMemory,
    phase: Phase | None,
    found: Rehearsed,
    shortfall: Shortfall | None,
    demands: Iterable[Demand],
) -> ObservedOom:
    """What PyTorch's message says, beside the rehearsal `found` of the same configuration.

    The room lacking is what was wanted beyond what was free, what the costliest demand takes beyond
    the step that failed, and vLLM's own slack.
    """
    wanted, free, allocated = cause.tried_bytes, cause.free_bytes, cause.allocated_bytes
    outside = step = None
    if cause.total_bytes is not None and free is not None and allocated is not None:
        outside = cause.total_bytes - free - allocated - (cause.unallocated_bytes or 0)
    serving = phase not in _BEFORE_KV_CACHE
    if serving and allocated is not None and wanted is not None:
        graphs = cause.graph_pools_bytes
        static = found.weights_bytes + found.buffers_bytes + max(found.kv_cache_bytes, 0)
        static += found.cudagraph_bytes if graphs is None else graphs
        step = max(0, allocated + wanted - static) or None
    lacking = max(0, (wanted or 0) - (free or 0)) + VLLM_SLACK_BYTES
    if step is not None and shortfall is not None:
        lacking += max(0, shortfall.worst.nbytes - step)
    encodes = [one for one in demands if isinstance(one, WorstStep)] if _encodes(phase) else []
    of = max(encodes, key=lambda one: one.nbytes, default=None)
    tokens = items = 0
    if of is not None and step is not None and found.budget is not None:
        tokens = round(step * of.tokens / of.nbytes)
        items = -(-tokens // max(1, found.budget.max_tokens_per_item.get(of.modality, 1)))
    return ObservedOom(
        phase=phase,
        wanted_bytes=wanted,
        free_bytes=free,
        outside_torch_bytes=None if outside is None else max(0, outside),
        step_bytes=step,
        step_modality=of.modality if tokens and of else None,
        step_tokens=tokens,
        step_items=items,
        step_limit_tokens=of.tokens if tokens and of else 0,
        lacking_bytes=lacking,
        spare_bytes=_spare(phase, found, shortfall),
    )


def _encodes(phase: Phase | None) -> bool:
    return phase is None or "encoder" in phase
