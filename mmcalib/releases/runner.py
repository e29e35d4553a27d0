"""Model runner, budget, KV cache, memory counts; imports vLLM only inside functions."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any, Final
from unittest.mock import patch

from mmcalib.domain.memory import Budget, Clip, WorkerMemory
from mmcalib.domain.shapes import MODALITIES, Modality
from mmcalib.releases import release
from mmcalib.text import GIB

# Phase → the method of both model runners that is it; the encoder is a method of the model.
RUNNER_PHASES: Final = {"language model": "_dummy_run", "sampler": "_dummy_sampler_run"}
ENCODER: Final = "embed_multimodal" if release.VLLM_0_13.reached else "get_multimodal_embeddings"

_Method = Callable[..., Any]


def uses_v2_runner(worker: Any) -> bool:
    """Whether it is the second of vLLM's model runners; older releases have one."""
    return release.VLLM_0_13.reached and bool(worker.use_v2_model_runner)


def estimates_graphs(worker: Any) -> bool:
    """Whether its model runner estimates what CUDA graphs will take: the second one since 0.29."""
    return release.VLLM_0_29.reached or not uses_v2_runner(worker)


def gpu_worker(config: Any) -> Any:
    """vLLM's CUDA worker, one rank, not yet brought up."""
    from vllm.v1.worker.gpu_worker import Worker

    # Under tensor parallelism, one rank of several that are alike.
    return Worker(config, 0, 0, "env://", is_driver_worker=True)


@contextmanager
def watched_phases(
    runner: Any, model: Any, watch: Callable[[str, _Method], _Method]
) -> Iterator[None]:
    """While open, each phase that the profile has runs through what `watch` makes of its method."""
    owners = [(runner, name, method) for name, method in RUNNER_PHASES.items()]
    if getattr(model, ENCODER, None) is not None:
        owners.append((model, "encoder", ENCODER))
    with ExitStack() as undo:
        for owner, name, method in owners:
            undo.callback(owner.__dict__.pop, method, None)
            owner.__dict__[method] = watch(name, getattr(owner, method))
        yield


def run_prefill(worker: Any, tokens: int, prompts: int) -> None:
    """A step of `tokens` in so many equal prompts, with attention and recurrent layers."""
    runner = worker.model_runner
    # The tokens of a dummy step are spread over as many requests as there may be.
    owner, most, attending = runner.scheduler_config, "max_num_seqs", {"force_attention": True}
    if uses_v2_runner(worker):
        owner, most, attending = runner, "max_num_reqs", {"skip_attn": False}
    with patch.object(owner, most, prompts):
        runner._dummy_run(tokens, **attending)


def run_encoder(model: Any, batches: list[dict[str, Any]]) -> list[Any]:
    """What the model's encoder makes of batches: an output per item."""
    return [out for batch in batches for out in getattr(model, ENCODER)(**batch)]


def encoder_batches(
    worker: Any, modality: str, media: Any, items: int
) -> tuple[list[dict[str, Any]], int]:
    """One processed item, `items` times, batched for the encoder as the runner does; its embeds."""
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
    """vLLM's MultiModalBudget of an engine config, since 0.16."""
    from vllm.multimodal import MULTIMODAL_REGISTRY
    from vllm.multimodal.encoder_budget import MultiModalBudget

    options = {"enable_cache": False} if release.VLLM_0_28.reached else {}
    return MultiModalBudget(config, MULTIMODAL_REGISTRY, **options)


def worker_budget(worker: Any) -> Any:
    """The worker's MultiModalBudget, None for a text-only model; the V2 runner keeps none."""
    if not uses_v2_runner(worker):
        return worker.model_runner.mm_budget
    config = worker.vllm_config
    return multimodal_budget(config) if config.model_config.is_multimodal_model else None


# Of a MultiModalBudget, by modality: the most tokens of an item, items of a prompt and of a batch.
_FIGURES: Final = (
    ("mm_max_toks_per_item", "mm_max_items_per_prompt", "mm_max_items_per_batch")
    if release.VLLM_0_16.reached
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
    known = release.VLLM_0_28.reached and "video" in most
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
    """The encoder budget of a config, before 0.20 of its runner; None for a text-only model."""
    if not config.model_config.is_multimodal_model:
        return None
    mm = multimodal_budget(config) if release.VLLM_0_16.reached else runner.mm_budget
    return None if mm is None else budget_of(config, mm, largest_clip)


def _modality(name: str) -> Modality:
    """Raises ValueError for vLLM's own others, such as the `vision_chunk` of Kimi-K2.5."""
    for known in MODALITIES:
        if name == known:
            return known
    raise ValueError(f"the model takes {name}, of which mmcalib knows no items")


def resolve_layout(config: Any, worker: Any, specs: list[Any]) -> None:
    """Choose the KV cache's layout, where that is a step of its own before sizes are known."""
    if not release.VLLM_0_29.reached:
        return
    from vllm.v1.attention.backends.utils import resolve_kv_cache_layout

    layouts = worker.get_supported_kv_cache_layouts()
    resolve_kv_cache_layout(config, [layouts], specs)


def bytes_per_token(specs: Iterable[Any]) -> float:
    """Bytes of one more token in layers that keep each; recurrent ones keep a state per request."""
    from vllm.v1.kv_cache_interface import MambaSpec

    growing = (spec for spec in specs if not isinstance(spec, MambaSpec))
    return float(sum(spec.page_size_bytes / spec.block_size for spec in growing))


def kv_cache_config(config: Any, specs: dict[str, Any], available_bytes: int) -> Any:
    """What the engine core makes of one worker's layers. Raises ValueError where nothing fits."""
    if release.VLLM_0_33.reached:
        from vllm.v1.core import kv_cache_planning as planning

        groups = planning.get_global_kv_cache_groups(config, [specs])
        return planning.get_kv_cache_configs(config, [specs], [available_bytes], groups)[0]
    from vllm.v1.core import kv_cache_utils as utils

    return utils.get_kv_cache_configs(config, [specs], [available_bytes])[0]


def sequences_at_once(layout: Any) -> int:
    """Most requests under way: a block, or a state, per group each; one block is vLLM's own."""
    return max(1, (int(layout.num_blocks) - 1) // max(1, len(layout.kv_cache_groups)))


def kv_cache_tokens(config: Any, layout: Any) -> tuple[int, float]:
    """Startup's "GPU KV cache size" and "Maximum concurrency"; before 0.20.1 of one group."""
    from vllm.v1.core import kv_cache_utils as utils

    concurrency = utils.get_max_concurrency_for_kv_cache_config(config, layout)
    if release.VLLM_0_20_1.reached:
        return int(concurrency * config.model_config.max_model_len), concurrency
    groups = layout.kv_cache_groups
    tokens = layout.num_blocks // len(groups) * min(g.kv_cache_spec.block_size for g in groups)
    return tokens, concurrency


# cuBLAS takes 32 MiB on Hopper, cublasLt as much; more was taken by something else.
_LEFT_BY_PROFILE_BYTES: Final = 128 << 20


def worker_memory(worker: Any, *, subtracts_graphs: bool) -> WorkerMemory:
    """What vLLM's CUDA worker keeps of its start; `subtracts_graphs`: its estimate was subtracted.

    0.32 keeps all consumed, with weights, as `total_consumed`, and graphs in the peak; 0.26 does
    not.
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
    """With the peaks of a second profile, raised by the workspaces that the first left in torch."""
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
