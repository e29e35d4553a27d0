"""How a start of vLLM divides the GPU's memory, by release; vLLM is not imported.

Every share, order and reserve of a start stands here, with its source.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from mmcalib.domain.memory import Division

# Each with the first release that divides so, the newest first. The default of
# `gpu_memory_utilization` is that of config/cache.py:102 of 0.32, which does not start if a smaller
# share is free; driver and display need some hundred MiB of the rest. The runners that estimate
# CUDA graphs have `profile_cudagraph_memory` in v1/worker/gpu_model_runner.py or gpu/ of 0.32.
DIVISIONS: tuple[tuple[tuple[int, int], Division], ...] = (
    ((0, 29), Division(0.92, 0.95, ("V1", "V2"))),
    ((0, 20), Division(0.92, 0.95, ("V1",))),
    ((0, 0), Division(0.9, 0.95)),
)
EXTENSIBLE: Final = "enable_extensible_kv_cache"
_RELEASE = re.compile(r"(\d+)\.(\d+)(?:\..*)?")


def divide(release: str, engine_args: Mapping[str, Any] = MappingProxyType({})) -> Division:
    """Return how a release divides the GPU under these arguments; an unknown one as the newest."""
    match, newest = _RELEASE.fullmatch(release), DIVISIONS[0][0]
    known = (int(match[1]), int(match[2])) if match else newest
    # A KV cache of a given size is never extensible.
    fixed = engine_args.get("kv_cache_memory_bytes") is not None
    fixed |= engine_args.get(EXTENSIBLE) is False
    reached = (division for since, division in DIVISIONS if since <= known)
    return next(one for one in reached if not (fixed and one.is_extensible))


# The slack in the worker's suggested KV cache size. v1/worker/gpu_worker.py:994 of 0.32.
VLLM_SLACK_BYTES: Final = 150 << 20
# The CUDA context takes this before vLLM's first memory snapshot, outside `gpu_memory_utilization`:
# 0.23 GiB on an A10G (public file 62145020194), 0.45 to 0.60 on larger GPUs. More is another
# process's.
CONTEXT_BYTES: Final = 236 << 20
MOST_CONTEXT_BYTES: Final = 640 << 20
# NCCL takes this on each of several GPUs before that snapshot, by whether they have NVLink: medians
# of 0.21 to 0.36 GiB (two RTX 5090, four RTX 6000D, four RTX 3090) and of 1.3 to 2.0 GiB (two H100,
# vllm#10511; four and eight A100, public files 12053131581, 3706561278; eight H200, 68866868027).
# That includes vLLM's own buffers: 0.24 GiB at most (custom_all_reduce.py, symm_mem.py of 0.32).
NCCL_BYTES: Final = {False: 280 << 20, True: 1640 << 20}
NVLINK_CAPABILITIES: Final = ((8, 0), (9, 0), (10, 0), (10, 3))
# The least and the most non-torch memory in logs of GPUs that share the host's memory
# (benchmarks/memory_allowances.toml).
UNIFIED_NON_TORCH_BYTES: Final = (2816 << 20, 4516 << 20)
