"""What the engine core makes of the memory that is left for the KV cache."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from mmcalib.releases.release import VLLM_0_10, VLLM_0_11, VLLM_0_23, VLLM_0_29, VLLM_0_33


def resolve_layout(config: Any, worker: Any, specs: list[Any]) -> None:
    """Choose the KV cache's layout, where that is a step of its own before sizes are known."""
    if not VLLM_0_29.reached:
        return
    from vllm.v1.attention.backends.utils import resolve_kv_cache_layout

    layouts = worker.get_supported_kv_cache_layouts()
    resolve_kv_cache_layout(config, [layouts], specs)


def bytes_per_token(specs: Iterable[Any]) -> float:
    """What one more token takes in the layers that keep something of each; a recurrent layer keeps
    one state per request, however long that is.
    """
    from vllm.v1.kv_cache_interface import MambaSpec

    growing = (spec for spec in specs if not isinstance(spec, MambaSpec))
    return float(sum(spec.page_size_bytes / spec.block_size for spec in growing))


def kv_cache_config(config: Any, specs: dict[str, Any], available_bytes: int) -> Any:
    """What the engine core makes of one worker's layers. Raises ValueError where nothing fits."""
    if VLLM_0_33.reached:
        from vllm.v1.core import kv_cache_planning as planning

        groups = planning.get_global_kv_cache_groups(config, [specs])
        return planning.get_kv_cache_configs(config, [specs], [available_bytes], groups)[0]
    from vllm.v1.core import kv_cache_utils as utils

    if VLLM_0_11.reached:
        return utils.get_kv_cache_configs(config, [specs], [available_bytes])[0]
    return utils.get_kv_cache_config(config, specs, available_bytes)


def sequences_at_once(layout: Any) -> int:
    """The most that may be under way: each has a block of every group at least, a state of its own
    where the group's layers are recurrent. One block is vLLM's own (`BlockPool.null_block`).
    """
    return max(1, (int(layout.num_blocks) - 1) // max(1, len(layout.kv_cache_groups)))


def kv_cache_tokens(config: Any, layout: Any) -> tuple[int, float]:
    """The "GPU KV cache size" and "Maximum concurrency" that startup prints.

    Older releases count the blocks of one group, the oldest divide them by the longest request.
    """
    from vllm.v1.core import kv_cache_utils as utils

    longest = config.model_config.max_model_len
    groups = layout.kv_cache_groups
    tokens = layout.num_blocks // len(groups) * min(g.kv_cache_spec.block_size for g in groups)
    if not VLLM_0_10.reached:
        return tokens, tokens / longest
    concurrency = utils.get_max_concurrency_for_kv_cache_config(config, layout)
    return (int(concurrency * longest) if VLLM_0_23.reached else tokens), concurrency
