"""Trap of `mm_processor_cache_gb`: a cache that does not hold one request fails it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from mmcalib.checks.check import Check, CheckId
from mmcalib.checks.dialect import line
from mmcalib.checks.facts import CheckFacts, Need
from mmcalib.checks.rule import CheckStage, Rule
from mmcalib.derive.cache_floor import CacheFloor, parts
from mmcalib.derive.mm_cache import written_gib
from mmcalib.releases.constants import PROCESSOR_CACHE_GIB
from mmcalib.sizes import GIB
from mmcalib.wording import gib

CACHE = CheckId("processor cache holds a request")

SIZE = "mm_processor_cache_gb"


def cache_findings(engine_args: Mapping[str, Any], floor: CacheFloor) -> Check | None:
    """None where vLLM has no such cache, or one that pushes out nothing of the request at hand:
    `shm` keeps what is touched (`ShmObjectStoreSenderCache`, vllm/multimodal/cache/shm.py of 0.32),
    which data-parallel engines of one server do not have (`_get_cache_type`, factories.py).
    """
    given = engine_args.get(SIZE)
    size = PROCESSOR_CACHE_GIB if given is None else given
    alone = (engine_args.get("data_parallel_size") or 1) == 1
    if not size or not floor.nbytes:
        return None
    if alone and engine_args.get("mm_processor_cache_type") == "shm":
        return None
    said = f"{SIZE} {size:g}" if given is not None else f"vLLM's default of {size} GiB"
    most = f"{' + '.join(parts(floor))} = {gib(floor.nbytes)} (computed)"
    if floor.nbytes <= size * GIB:
        return Check(CACHE, "pass", f"{said}; one admissible request may bring {most}")
    return Check(
        CACHE,
        "warn",
        f"{said}, but one admissible request may bring {most}: where its new items push out one "
        "that it found cached, vLLM ends it with HTTP 500, `Expected a cached item` "
        "(_merge_mm_kwargs, vllm/multimodal/processing/processor.py)",
        f"{line(SIZE, 0)}, or {line(SIZE, written_gib(floor.nbytes))} where the host has that "
        "twice, or smaller limits",
    )


def _holds(facts: CheckFacts) -> Iterator[Check]:
    floor = facts.tries.cache_floor
    check = None if floor is None else cache_findings(facts.configuration.engine_args, floor)
    if check is not None:
        yield check


RULES = (Rule((CACHE,), {CheckStage.WRITTEN: 60}, _holds, frozenset({Need.TRIES})),)
