"""The smallest GPU of the catalogue on which configurations start, by vLLM's startup rehearsed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mmcalib.domain.rehearsed import Rehearsed
from mmcalib.errors import EngineError
from mmcalib.gpus import catalogue
from mmcalib.gpus.gpu import Gpu
from mmcalib.workflows.memory.rehearse import Rehearsals

# vLLM's defaults change at 70 GiB of memory: what is found on one side is known of the other to
# within this share, and nothing below it is tried.
_SLACK = 0.95
_REFERENCES = ("L4", "H100-80G", "B300")


@dataclass(slots=True)
class Start:
    """A configuration, what it was found to need by the references, and where it starts."""

    engine_args: Mapping[str, Any]
    rehearsed: dict[str, Rehearsed] = field(default_factory=dict)
    gpu: str | None = None

    @property
    def least_bytes(self) -> float:
        """Of a GPU's memory, by the reference that needs least; 0 where nothing is known."""
        request = min(self._requests(), default=None)
        if request is None:
            return 0.0
        return _SLACK * min(_needed_bytes(one, request) for one in self.rehearsed.values())

    def _requests(self) -> Iterator[float]:
        """Bytes of the KV cache that a request of the whole context takes."""
        for one in self.rehearsed.values():
            if one.max_concurrency:
                yield one.kv_cache_bytes / one.max_concurrency


def _needed_bytes(rehearsed: Rehearsed, request_bytes: float) -> float:
    """Of a GPU of which vLLM asks for the same share."""
    parts = rehearsed.requested_bytes - rehearsed.kv_cache_bytes
    return (parts + request_bytes) * rehearsed.total_bytes / rehearsed.requested_bytes


def ladder() -> list[Gpu]:
    """Every GPU that runs vLLM's CUDA code, by its memory."""
    able = (gpu for gpu in catalogue.all() if gpu.capability and not gpu.memory_only)
    return sorted(able, key=lambda gpu: (gpu.total_bytes, gpu.name))


def find_starts(starts: Sequence[Start], say: Callable[[str], None]) -> None:
    """Fill in `gpu` of each: one process per GPU, from the references upwards."""
    for name in _REFERENCES:
        _on(catalogue.find(name), [s for s in starts if name != "B300" or not s.least_bytes], say)
    for gpu in ladder():
        tried = [s for s in starts if s.gpu is None and s.least_bytes <= gpu.total_bytes]
        _on(gpu, tried, say)
        for start in tried:
            rehearsed = start.rehearsed.get(gpu.name)
            if rehearsed is not None and not rehearsed.problem:
                start.gpu = gpu.name


def _on(gpu: Gpu, starts: Sequence[Start], say: Callable[[str], None]) -> None:
    if all(gpu.name in start.rehearsed for start in starts):
        return
    say(f"{gpu.name}: {len(starts)}")
    with Rehearsals(gpu) as rehearsals:
        for start in starts:
            if gpu.name in start.rehearsed:
                continue
            try:
                start.rehearsed[gpu.name] = rehearsals.rehearse(start.engine_args)
            except EngineError as error:
                say(f"{gpu.name}: {start.engine_args['model']}: {error.message}")
