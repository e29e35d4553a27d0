"""What guides name and what frees no memory of a GPU: shown, and not rehearsed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from mmcalib.derive.fix import Fix
from mmcalib.derive.fix_rule import FixRule, Unfixed

HOST_ONLY: Final = "host memory only"


def _host(_: Unfixed) -> Iterator[Fix]:
    yield Fix(
        name="mm_processor_cache_gb",
        knob="mm_processor_cache_gb",
        changes={"mm_processor_cache_gb": 0},
        cost="speed",
        price="processed media are not kept: 4 GiB less for each process that has a cache",
        combines=False,
        untried=HOST_ONLY,
    )
    yield Fix(
        name="VLLM_CPU_KVCACHE_SPACE",
        knob="VLLM_CPU_KVCACHE_SPACE",
        changes={},
        cost="speed",
        price="the KV cache of vLLM's CPU backend: no GPU has it",
        combines=False,
        untried=HOST_ONLY,
    )


RULES = (FixRule(130, _host),)
