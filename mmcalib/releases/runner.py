"""vLLM's model runner, encoder budget, KV cache and memory counts; vLLM is imported late."""

from __future__ import annotations

import copy
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from inspect import signature
from typing import Any, Final
from unittest.mock import patch

from mmcalib.domain.memory import Budget, Clip, Division, WorkerMemory
from mmcalib.domain.shapes import MODALITIES, Modality
from mmcalib.releases import release
from mmcalib.releases.constants import EXTENSIBLE, divide
from mmcalib.text import GIB

# Phase → its method in both model runners. The encoder is a method of the model.
RUNNER_PHASES: Final = {"language model": "_dummy_run", "sampler": "_dummy_sampler_run"}
ENCODER: Final = "embed_multimodal" if release.VLLM_0_13.is_reached else "get_multimodal_embeddings"

_Method = Callable[..., Any]


def uses_v2_runner(worker: Any) -> bool:
    """Return True if the worker has vLLM's V2 model runner; older releases only have V1."""
    return release.VLLM_0_13.is_reached and bool(worker.use_v2_model_runner)


def estimates_graphs(worker: Any) -> bool:
    """Return True if its model runner estimates CUDA graph memory."""
    name = "V2" if uses_v2_runner(worker) else "V1"
    return name in divide(release.version_of("vllm")).estimates_graphs


def subtracts_graphs(worker: Any) -> bool:
    """Return True if startup subtracts that estimate, which a variable turns off."""
    from vllm import envs

    return estimates_graphs(worker) and bool(envs.VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS)


def divide_gpu(config: Any, engine_args: Mapping[str, Any]) -> Division:
    """Return how the installed release divides the GPU; set vLLM's share unless it is given."""
    # Only the second runner has an extensible KV cache.
    first = {} if getattr(config, "use_v2_model_runner", False) else {EXTENSIBLE: False}
    found = divide(release.version_of("vllm"), {**engine_args, **first})
    if engine_args.get("gpu_memory_utilization") is None:
        config.cache_config.gpu_memory_utilization = found.utilization
    return found


def gpu_worker(config: Any) -> Any:
    """Return vLLM's CUDA worker of one rank, not initialized."""
    from vllm.v1.worker.gpu_worker import Worker

    # With tensor parallelism all ranks are alike.
    return Worker(config, 0, 0, "env://", is_driver_worker=True)


def refuse_start(worker: Any, free_bytes: int) -> str:
    """Return vLLM's error if it finds only `free_bytes` free at its start; empty if it goes on."""
    from vllm.v1.worker import utils

    if free_bytes >= worker.requested_memory:
        return ""
    first = copy.copy(worker.init_snapshot)
    first.free_memory = free_bytes
    try:
        # The oldest workers have the check in `init_device`.
        if release.VLLM_0_28.is_reached:
            utils.request_memory(first, worker.cache_config)
    except ValueError as error:
        return " ".join(str(error).split()).rstrip(".")
    free, total = free_bytes / GIB, first.total_memory / GIB
    return f"Free memory on device ({free:.2f}/{total:.2f} GiB) on startup is too little"


@contextmanager
def wrap_phases(
    runner: Any, model: Any, watch: Callable[[str, _Method], _Method]
) -> Iterator[None]:
    """While open, `watch` wraps the method of each phase of the profile."""
    owners = [(runner, name, method) for name, method in RUNNER_PHASES.items()]
    if getattr(model, ENCODER, None) is not None:
        owners.append((model, "encoder", ENCODER))
    with ExitStack() as undo:
        for owner, name, method in owners:
            undo.enter_context(patch.object(owner, method, watch(name, getattr(owner, method))))
        yield


def run_prefill(worker: Any, tokens: int, prompts: int) -> None:
    """Run a step of `tokens` in `prompts` equal prompts, with attention and recurrent layers."""
    runner = worker.model_runner
    # A dummy step spreads its tokens over the maximum number of requests.
    owner, most, attending = runner.scheduler_config, "max_num_seqs", {"force_attention": True}
    if uses_v2_runner(worker):
        owner, most, attending = runner, "max_num_reqs", {"skip_attn": False}
    with patch.object(owner, most, prompts):
        runner._dummy_run(tokens, **attending)


def warm_up_sampler(worker: Any) -> None:
    """Run the V2 runner's sampler as `warmup_kernels` does (v1/worker/gpu/warmup.py of 0.32)."""
    import torch
    from vllm import SamplingParams

    model, sampler = worker.vllm_config.model_config, worker.model_runner.sampler
    limits = worker.vllm_config.scheduler_config
    requests = min(limits.max_num_seqs, limits.max_num_batched_tokens // 2)
    # That of older releases, such as 0.29, takes the prompt's length too.
    length = (1,) if "prompt_len" in signature(sampler.add_request).parameters else ()
    for index in range(requests):
        sampler.add_request(index, *length, SamplingParams.for_sampler_warmup())
    sampler.apply_staged_writes()
    hidden = torch.empty(requests, model.get_hidden_size(), dtype=model.dtype, device=worker.device)
    worker.model_runner._dummy_sampler_run(hidden)


def run_encoder(model: Any, batches: list[dict[str, Any]]) -> list[Any]:
    return [out for batch in batches for out in getattr(model, ENCODER)(**batch)]


def encoder_batches(
    worker: Any, modality: str, media: Any, items: int
) -> tuple[list[dict[str, Any]], int]:
    """Batch `items` copies of one processed item as the runner does; also return its embeds."""
    from vllm.multimodal.utils import group_and_batch_mm_kwargs

    from mmcalib.releases.processors import process_item

    runner = worker.model_runner
    output = process_item(worker_budget(worker).processor, modality, media)
    equal = [(modality, output["mm_kwargs"][modality][0])] * items
    # As in `_execute_mm_encoder` (vllm/v1/worker/gpu_model_runner.py, 0.32).
    is_sequential = modality == "video" and (
        getattr(runner, "is_multimodal_pruning_enabled", False)
        or getattr(runner, "requires_sequential_video_encoding", False)
    )
    batches = [
        kwargs
        for group in ([[item] for item in equal] if is_sequential else [equal])
        for _, _, kwargs in group_and_batch_mm_kwargs(group, device=runner.device, pin_memory=False)
    ]
    return batches, sum(p.get_num_embeds() for p in output["mm_placeholders"][modality])


# Returns the largest clip for a model config and its processor.
LargestClip = Callable[[Any, Any], Clip | None]


# For each model config: the most tokens of an item by modality.
_LARGEST: Final[dict[str, Mapping[str, int]]] = {}


def multimodal_budget(config: Any) -> Any:
    """Return vLLM's MultiModalBudget of an engine config, since 0.16.

    Its largest items are made once for each model config: GLM-4.1V's take 12 seconds to process.
    """
    from vllm.multimodal import MULTIMODAL_REGISTRY, encoder_budget

    options = {"enable_cache": False} if release.VLLM_0_28.is_reached else {}
    measure, key = encoder_budget.get_mm_max_toks_per_item, repr(config.model_config)

    def measure_once(*args: Any, **kwargs: Any) -> Mapping[str, int]:
        if key not in _LARGEST:
            _LARGEST[key] = measure(*args, **kwargs)
        return _LARGEST[key]

    with patch.object(encoder_budget, "get_mm_max_toks_per_item", measure_once):
        return encoder_budget.MultiModalBudget(config, MULTIMODAL_REGISTRY, **options)


def worker_budget(worker: Any) -> Any:
    """Return the worker's MultiModalBudget (None: text-only). The V2 runner gets it here."""
    runner, config = worker.model_runner, worker.vllm_config
    found = getattr(runner, "mm_budget", None)
    if found is None and uses_v2_runner(worker) and config.model_config.is_multimodal_model:
        found = runner.mm_budget = multimodal_budget(config)
    return found


# Attributes of MultiModalBudget by modality: most tokens per item, items per prompt and per batch.
_FIGURES: Final = (
    ("mm_max_toks_per_item", "mm_max_items_per_prompt", "mm_max_items_per_batch")
    if release.VLLM_0_16.is_reached
    else tuple(f"max_{n}_by_modality" for n in ("tokens", "items_per_prompt", "items_per_batch"))
)


def to_budget(config: Any, mm: Any, largest_clip: LargestClip) -> Budget:
    """Read a MultiModalBudget. The largest clip is unknown before 0.28."""
    # vLLM iterates a set, so the order varies.
    most, per_prompt, per_batch = (
        {_modality(name): figures[name] for name in sorted(figures)}
        for figures in (getattr(mm, figure) for figure in _FIGURES)
    )
    profiled = _modality(mm.get_modality_with_max_tokens()) if most else None
    has_clip = release.VLLM_0_28.is_reached and "video" in most
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
        largest_clip=largest_clip(config.model_config, mm.processor) if has_clip else None,
    )


def read_budget(config: Any, runner: Any, largest_clip: LargestClip) -> Budget | None:
    """Return the encoder budget of a config, before 0.16 of its runner; None if text-only."""
    if not config.model_config.is_multimodal_model:
        return None
    mm = multimodal_budget(config) if release.VLLM_0_16.is_reached else runner.mm_budget
    return None if mm is None else to_budget(config, mm, largest_clip)


def _modality(name: str) -> Modality:
    """Raises ValueError for other modalities of vLLM, such as the `vision_chunk` of Kimi-K2.5."""
    for modality in MODALITIES:
        if name == modality:
            return modality
    raise ValueError(f"the model takes {name}, which mmcalib does not support")


def resolve_layout(config: Any, worker: Any, specs: list[Any]) -> None:
    """Choose the KV cache's layout; since 0.29 that is a separate step before sizes are known."""
    if not release.VLLM_0_29.is_reached:
        return
    from vllm.v1.attention.backends.utils import resolve_kv_cache_layout

    resolve_kv_cache_layout(config, [worker.get_supported_kv_cache_layouts()], specs)


def bytes_per_token(specs: Iterable[Any]) -> float:
    """Return KV bytes per token. Recurrent layers keep a state per request and do not count."""
    from vllm.v1.kv_cache_interface import MambaSpec

    growing = (spec for spec in specs if not isinstance(spec, MambaSpec))
    return float(sum(spec.page_size_bytes / spec.block_size for spec in growing))


def kv_cache_config(config: Any, specs: dict[str, Any], available_bytes: int) -> Any:
    """Return the engine core's KV cache config for one worker. Raises ValueError if none fits."""
    if release.VLLM_0_33.is_reached:
        from vllm.v1.core import kv_cache_planning as planning

        groups = planning.get_global_kv_cache_groups(config, [specs])
        return planning.get_kv_cache_configs(config, [specs], [available_bytes], groups)[0]
    from vllm.v1.core import kv_cache_utils as utils

    return utils.get_kv_cache_configs(config, [specs], [available_bytes])[0]


def kv_cache_tokens(config: Any, layout: Any) -> tuple[int, float]:
    """Return startup's "GPU KV cache size" and "Maximum concurrency"; one group before 0.20.1."""
    from vllm.v1.core import kv_cache_utils as utils

    concurrency = utils.get_max_concurrency_for_kv_cache_config(config, layout)
    if release.VLLM_0_20_1.is_reached:
        return int(concurrency * config.model_config.max_model_len), concurrency
    groups = layout.kv_cache_groups
    tokens = layout.num_blocks // len(groups) * min(g.kv_cache_spec.block_size for g in groups)
    return tokens, concurrency


# cuBLAS and cublasLt take 32 MiB each on Hopper. A larger rest has another cause.
_LEFT_BY_PROFILE_BYTES: Final = 128 << 20


def read_worker_memory(worker: Any, *, subtracts_graphs: bool) -> WorkerMemory:
    """Read the startup memory of vLLM's CUDA worker.

    `subtracts_graphs`: startup subtracted its graph estimate. 0.32 counts weights in
    `total_consumed` and graphs in the peak; 0.26 does not.
    """

    def read(name: str) -> int | None:
        value = getattr(worker, name, None)
        return None if value is None else int(value)

    first, cache = getattr(worker, "init_snapshot", None), worker.vllm_config.cache_config
    weights = int(worker.model_runner.model_memory_usage)
    graphs, peak = read("cudagraph_memory_estimate"), read("peak_activation_memory")
    if graphs is not None and not subtracts_graphs:
        graphs = 0
    consumed, non_torch = read("total_consumed"), read("non_torch_memory")
    non_weights = non_torch
    if consumed is not None:
        non_weights = consumed - weights
        peak = None if peak is None else peak - (graphs or 0)
    blocks, block_size = cache.num_gpu_blocks, cache.block_size
    tokens = getattr(cache, "kv_cache_size_tokens", None)
    if tokens is None and blocks and block_size:
        tokens = blocks * block_size
    return WorkerMemory(
        runner="V2" if getattr(worker, "use_v2_model_runner", False) else "V1",
        total_bytes=None if first is None else int(first.total_memory),
        free_before_bytes=None if first is None else int(first.free_memory),
        requested_bytes=read("requested_memory"),
        weights_bytes=weights,
        activation_peak_bytes=peak,
        beside_bytes=non_weights,
        non_torch_bytes=non_torch,
        cudagraph_bytes=graphs,
        # vLLM does not measure a size that the user set.
        kv_cache_bytes=cache.kv_cache_memory_bytes or read("available_kv_cache_memory_bytes"),
        kv_cache_tokens=None if tokens is None else int(tokens),
        max_concurrency=getattr(cache, "kv_cache_max_concurrency", None),
    )


def add_phase_peaks(memory: WorkerMemory, peaks: dict[str, int]) -> WorkerMemory:
    """Add peaks of a second profile, plus the workspaces that the first left in torch."""
    own, highest = memory.activation_peak_bytes or 0, max(peaks.values(), default=0)
    workspaces = own - highest if own - highest <= _LEFT_BY_PROFILE_BYTES else 0
    return replace(memory, phases={n: peak + max(0, workspaces) for n, peak in peaks.items()})


_GRAPH_MEMORY = re.compile(r"Graph capturing finished in \S+ secs, took (\S+) GiB")


class _GraphMemory(logging.Handler):
    """Reads the size of CUDA graphs from vLLM's log; no attribute has it."""

    def __init__(self) -> None:
        super().__init__()
        self.nbytes: int | None = None

    def emit(self, record: logging.LogRecord) -> None:
        match = _GRAPH_MEMORY.search(record.getMessage())
        if match:
            self.nbytes = round(float(match[1]) * GIB)


@contextmanager
def record_graph_bytes() -> Iterator[_GraphMemory]:
    """While open, the handler receives the size of CUDA graphs captured in this process."""
    handler, logger = _GraphMemory(), logging.getLogger("vllm")
    logger.addHandler(handler)
    try:
        yield handler
    finally:
        logger.removeHandler(handler)
