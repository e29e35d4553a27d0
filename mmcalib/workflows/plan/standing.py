"""What a plan stands on: the rehearsal, or a log and what was rehearsed to change from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from mmcalib.derive.anchor import TOLERANCE_BYTES, Anchor, Part, parts
from mmcalib.derive.logs import StartupLog
from mmcalib.domain.label import Label
from mmcalib.domain.rehearsed import Rehearsed
from mmcalib.gpus.gpu import Gpu
from mmcalib.result.memory import Memory
from mmcalib.wording import gib
from mmcalib.workflows.memory.figures import memory
from mmcalib.workflows.plan.log_gpu import same_size

# Nothing but the KV cache follows from a log that itemises nothing else.
_ITEMS: Final = (
    *("weights_bytes", "buffers_bytes", "activation_peak_bytes", "non_torch_bytes"),
    "cudagraph_bytes",
)
_CAPACITY: Final = ("kv_cache_bytes", "kv_cache_tokens", "max_concurrency")


@dataclass(frozen=True, slots=True)
class Standing:
    """`anchor` where the log decides; `parts` of the log's own configuration, and why it is so."""

    anchor: Anchor | None = None
    parts: tuple[Part, ...] = ()
    reason: str = ""

    @property
    def planned_from(self) -> Literal["log", "rehearsal"]:
        return "log" if self.anchor else "rehearsal"

    def label(self, found: Rehearsed) -> Label:
        """Of the KV cache of such a rehearsal."""
        if self.anchor is None:
            return "computed"
        return "measured" if found == self.anchor.base else "projected"

    def memory(self, found: Rehearsed, gpu: Gpu) -> Memory:
        """The keys of calibration.json's memory entries, each with its label. What a log does not
        itemise is None where it decides: it would not add up to its KV cache.
        """
        if self.anchor is None:
            return memory(found, gpu)
        shown = memory(self.anchor.moved(found), gpu)
        label = self.label(found)
        stated = _stated(self.anchor.log)
        items = {name: getattr(shown, name) if name in stated else None for name in _ITEMS}
        # Tokens that the log leaves out follow from its bytes and the rehearsed layout.
        labels = shown.labels | dict.fromkeys(_CAPACITY, "projected") | dict.fromkeys(stated, label)
        gone = {name for name, value in items.items() if value is None}
        labels = {name: of for name, of in labels.items() if name not in gone}
        return shown.model_copy(update={**items, "labels": labels})


def standing(log: StartupLog, found: Rehearsed, gpu: Gpu, total_bytes: int | None) -> Standing:
    """The log beside the rehearsal of its own configuration on `gpu`; `total_bytes` is the memory
    of the log's own GPU, where it says.
    """
    apart = tuple(parts(log, found))
    if total_bytes is not None and not same_size(gpu.total_bytes, total_bytes):
        reason = f"the log is of a GPU with {gib(total_bytes)}: all is rehearsed on {gpu.name}"
        return Standing(parts=apart, reason=reason)
    kv_cache = next((part for part in apart if part.name == "KV cache"), None)
    if kv_cache is None:
        reason = "the log states no KV cache: all figures are rehearsed"
        return Standing(parts=apart, reason=reason)
    by = f"{gib(abs(kv_cache.difference))} {'more' if kv_cache.difference > 0 else 'less'}"
    if not kv_cache.apart:
        reason = (
            f"planned from the rehearsal: its KV cache is the log's within {gib(TOLERANCE_BYTES)}"
        )
        return Standing(parts=apart, reason=reason)
    reason = (
        f"planned from the log: the rehearsal has {by} KV cache than it states, which is beyond "
        f"the {gib(TOLERANCE_BYTES)} by which rehearsals of the log's own release are off. All "
        "figures of the KV cache are the log's, plus what was rehearsed to change"
    )
    return Standing(Anchor(log, found), apart, reason)


def _stated(log: StartupLog) -> set[str]:
    """The fields that the log states, as a rehearsal has them."""
    found = {
        "requested_bytes": log.requested_bytes,
        "weights_bytes": log.weights_bytes,
        "activation_peak_bytes": log.activation_alone_bytes,
        "non_torch_bytes": log.non_torch_bytes,
        "cudagraph_bytes": log.reserved_graphs_bytes,
        "kv_cache_bytes": log.kv_cache_bytes,
        "kv_cache_tokens": log.kv_cache_tokens,
        "max_concurrency": log.max_concurrency,
    }
    return {name for name, value in found.items() if value is not None}
