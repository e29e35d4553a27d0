"""Model runner, budget, KV cache, memory counts; imports vLLM only inside functions."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any, Final

from mmcalib.domain.memory import Budget, Clip, WorkerMemory
from mmcalib.domain.shapes import MODALITIES, Modality
from mmcalib.releases.release import (
    VLLM_0_13,
    VLLM_0_20,
    VLLM_0_20_1,
    VLLM_0_28,
    VLLM_0_29,
    VLLM_0_33,
)
from mmcalib.text import GIB

# Phase → the runner's method that is it, in both of vLLM's model runners; the encoder is the
# model's own method.
RUNNER_PHASES: Final = {"language model": "_dummy_run", "sampler": "_dummy_sampler_run"}
ENCODER: Final = "embed_multimodal" if VLLM_0_13.reached else "get_multimodal_embeddings"

_Method = Callable[..., Any]


def uses_v2_runner(worker: Any) -> bool:
    """Whether it is the second of vLLM's model runners; older releases have one."""
    return VLLM_0_13.reached and bool(worker.use_v2_model_runner)


def estimates_graphs(worker: Any) -> bool:
    """Whether its model runner estimates what CUDA graphs will take: the second one since 0.29."""
    return VLLM_0_29.reached or not uses_v2_runner(worker)


def gpu_worker(config: Any) -> Any:
    """vLLM's CUDA worker, one rank, not yet brought up."""
    from vllm.v1.worker.gpu_worker import Worker

    # Under tensor parallelism, one rank of several that are alike.
    return Worker(config, 0, 0, "env://", is_driver_worker=True)


@contextmanager
def watched_phases(
    runner: Any, model: Any, watch: Callable[[str, _Method], _Method]
) -> Iterator[None]:
    """While open, each phase of a profile runs through what `watch` made of its name and method. A
    model without an encoder, or a release that leaves it out of its profile, has no such phase.
    """
    owners = [(runner, name, method) for name, method in RUNNER_PHASES.items()]
    if getattr(model, ENCODER, None) is not None:
        owners.append((model, "encoder", ENCODER))
    with ExitStack() as undo:
        for owner, name, method in owners:
            undo.callback(owner.__dict__.pop, method, None)
            owner.__dict__[method] = watch(name, getattr(owner, method))
        yield


def run_prefill(worker: Any, tokens: int, prompts: int) -> None:
    """A step of `tokens` of so many prompts alike, once there is a KV cache: with attention, and
    with the recurrent layers that a profile leaves out.
    """
    runner = worker.model_runner
    # The tokens of a dummy step are spread over as many requests as there may be.
    owner, most, attending = runner.scheduler_config, "max_num_seqs", {"force_attention": True}
    if uses_v2_runner(worker):
        owner, most, attending = runner, "max_num_reqs", {"skip_attn": False}
    true = getattr(owner, most)
    setattr(owner, most, prompts)
    try:
        runner._dummy_run(tokens, **attending)
    finally:
        setattr(owner, most, true)


def run_encoder(model: Any, batches: list[dict[str, Any]]) -> list[Any]:
    """What the model's encoder makes of batches: an output per item."""
    return [out for batch in batches for out in getattr(model, ENCODER)(**batch)]


def encoder_batches(
    worker: Any, modality: str, media: Any, items: int
) -> tuple[list[dict[str, Any]], int]:
    """One processed item, `items` times over, batched as the model runner batches them for the
    encoder; and the embeds of one.
    """
    from vllm.multimodal.utils import group_and_batch_mm_kwargs

    from mmcalib.releases.processors import process_item

    runner = worker.model_runner
    output = process_item(worker_budget(worker).processor, modality, media)
    equal = [(modality, output["mm_kwargs"][modality][0])] * items
    # As in `_execute_mm_encoder` (vllm/v1/worker/gpu_model_runner.py, 0.32).
    alone = modality == "video" and (
        getattr(runner, "is_multimodal_pruning_enabled", False)
        or getattr(runner, "requires_sequential_video_encoding", False)
    )
    batches = [
        kwargs
        for group in ([[one] for one in equal] if alone else [equal])
        for _, _, kwargs in group_and_batch_mm_kwargs(group, device=runner.device, pin_memory=False)
    ]
    placeholders = output["mm_placeholders"][modality]
    return batches, sum(p.get_num_embeds() for p in placeholders)


# The largest clip under a model config, by its processor.
LargestClip = Callable[[Any, Any], Clip | None]


def multimodal_budget(config: Any) -> Any:
    """vLLM's MultiModalBudget of an engine config, since 0.23."""
    from vllm.multimodal import MULTIMODAL_REGISTRY
    from vllm.multimodal.encoder_budget import MultiModalBudget

    if VLLM_0_28.reached:
        return MultiModalBudget(config, MULTIMODAL_REGISTRY, enable_cache=False)
    return MultiModalBudget(config, MULTIMODAL_REGISTRY)


def worker_budget(worker: Any) -> Any:
    """The MultiModalBudget of this worker; None for a model that takes text alone.

    The second of vLLM's model runners builds one for its profile and does not keep it.
    """
    if not uses_v2_runner(worker):
        return worker.model_runner.mm_budget
    config = worker.vllm_config
    return multimodal_budget(config) if config.model_config.is_multimodal_model else None


# Of a MultiModalBudget, by modality: the most tokens of an item, items of a prompt and of a batch.
_FIGURES: Final = (
    ("mm_max_toks_per_item", "mm_max_items_per_prompt", "mm_max_items_per_batch")
    if VLLM_0_20.reached
    else (
        "max_tokens_by_modality",
        "max_items_per_prompt_by_modality",
        "max_items_per_batch_by_modality",
    )
)


def budget_of(config: Any, mm: Any, largest_clip: LargestClip) -> Budget:
    """What a MultiModalBudget says. Of releases before 0.28 no largest clip is known."""
    # They come from a set, in any order.
    most, per_prompt, per_batch = (
        {_modality(name): figures[name] for name in sorted(figures)}
        for figures in (getattr(mm, figure) for figure in _FIGURES)
    )
    profiled = _modality(mm.get_modality_with_max_tokens()) if most else None
    known = VLLM_0_28.reached and "video" in most
    return Budget(
        encoder_compute_budget=mm.encoder_compute_budget,
        encoder_cache_size=mm.encoder_cache_size,
        max_tokens_per_item=most,
        max_items_per_prompt=per_prompt,
        profiled_modality=profiled,
        profiled_items=per_batch[profiled] if profiled else 0,
        dummies={},
        max_model_len=config.model_config.max_model_len,
        max_num_batched_tokens=config.scheduler_config.max_num_batched_tokens,
        max_num_seqs=config.scheduler_config.max_num_seqs,
        largest_clip=largest_clip(config.model_config, mm.processor) if known else None,
    )


def read_budget(config: Any, runner: Any, largest_clip: LargestClip) -> Budget | None:
    """The encoder budget of an engine config; None for a model that takes text alone.

    A release without `vllm.multimodal.encoder_budget` is asked for its model runner's own.
    """
    if not config.model_config.is_multimodal_model:
        return None
    mm = multimodal_budget(config) if VLLM_0_20.reached else runner.mm_budget
    return None if mm is None else budget_of(config, mm, largest_clip)


def _modality(name: str) -> Modality:
    """Raises ValueError for vLLM's own others, such as the `vision_chunk` of Kimi-K2.5."""
    for known in MODALITIES:
        if name == known:
            return known
    raise ValueError(f"the model takes {name}, of which mmcalib knows no items")


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

    return utils.get_kv_cache_configs(config, [specs], [available_bytes])[0]


def sequences_at_once(layout: Any) -> int:
    """The most that may be under way: each has a block of every group at least, a state of its own
    where the group's layers are recurrent. One block is vLLM's own (`BlockPool.null_block`).
    """
    return max(1, (int(layout.num_blocks) - 1) // max(1, len(layout.kv_cache_groups)))


def kv_cache_tokens(config: Any, layout: Any) -> tuple[int, float]:
    """The "GPU KV cache size" and "Maximum concurrency" that startup prints; releases before 0.20.1
    count the blocks of one group.
    """
    from vllm.v1.core import kv_cache_utils as utils

    concurrency = utils.get_max_concurrency_for_kv_cache_config(config, layout)
    if VLLM_0_20_1.reached:
        return int(concurrency * config.model_config.max_model_len), concurrency
    groups = layout.kv_cache_groups
    tokens = layout.num_blocks // len(groups) * min(g.kv_cache_spec.block_size for g in groups)
    return tokens, concurrency


# cuBLAS takes 32 MiB on Hopper, cublasLt as much; more was taken by something else.
_LEFT_BY_PROFILE_BYTES: Final = 128 << 20


def worker_memory(worker: Any, *, subtracts_graphs: bool) -> WorkerMemory:
    """What vLLM's CUDA worker keeps of its start. `subtracts_graphs`: whether its estimate of CUDA
    graphs was taken off the KV cache.

    Attributes of 0.26 and of 0.32, which differ: 0.32 keeps all that was consumed, weights
    included, as `total_consumed`, and the graphs within `peak_activation_memory`.
    """

    def kept(name: str) -> int | None:
        value = getattr(worker, name, None)
        return None if value is None else int(value)

    first, cache = getattr(worker, "init_snapshot", None), worker.vllm_config.cache_config
    weights = int(worker.model_runner.model_memory_usage)
    graphs, peak = kept("cudagraph_memory_estimate"), kept("peak_activation_memory")
    if graphs is not None and not subtracts_graphs:
        graphs = 0
    consumed, outside = kept("total_consumed"), kept("non_torch_memory")
    beside = outside
    if consumed is not None:
        beside = consumed - weights
        peak = None if peak is None else peak - (graphs or 0)
    blocks, block_size = cache.num_gpu_blocks, cache.block_size
    tokens = getattr(cache, "kv_cache_size_tokens", None)
    if tokens is None and blocks and block_size:
        tokens = blocks * block_size
    return WorkerMemory(
        runner="V2" if getattr(worker, "use_v2_model_runner", False) else "V1",
        total_bytes=None if first is None else int(first.total_memory),
        free_before_bytes=None if first is None else int(first.free_memory),
        requested_bytes=kept("requested_memory"),
        weights_bytes=weights,
        activation_peak_bytes=peak,
        beside_bytes=beside,
        non_torch_bytes=outside,
        cudagraph_bytes=graphs,
        # A size that the user gave is never measured.
        kv_cache_bytes=cache.kv_cache_memory_bytes or kept("available_kv_cache_memory_bytes"),
        kv_cache_tokens=None if tokens is None else int(tokens),
        max_concurrency=getattr(cache, "kv_cache_max_concurrency", None),
    )


def with_phases(found: WorkerMemory, peaks: dict[str, int]) -> WorkerMemory:
    """With the peaks of a second profile. It finds what the first left in torch (workspaces of
    matrix products) already there; where vLLM's own peak has it, all are raised by it.
    """
    own, highest = found.activation_peak_bytes or 0, max(peaks.values(), default=0)
    left = own - highest if own - highest <= _LEFT_BY_PROFILE_BYTES else 0
    raised = {name: peak + max(0, left) for name, peak in peaks.items()}
    return replace(found, phases=raised)


_GRAPHS_TOOK = re.compile(r"Graph capturing finished in \S+ secs, took (\S+) GiB")


class _Captured(logging.Handler):
    """Notes the GiB that vLLM says its CUDA graphs took; no attribute keeps them."""

    def __init__(self) -> None:
        super().__init__()
        self.nbytes: int | None = None

    def emit(self, record: logging.LogRecord) -> None:
        found = _GRAPHS_TOOK.search(record.getMessage())
        if found:
            self.nbytes = round(float(found[1]) * GIB)


@contextmanager
def graphs_as_captured() -> Iterator[_Captured]:
    """While open, CUDA graphs that are captured in this process leave their size in the handler."""
    handler, logger = _Captured(), logging.getLogger("vllm")
    logger.addHandler(handler)
    try:
        yield handler
    finally:
        logger.removeHandler(handler)
