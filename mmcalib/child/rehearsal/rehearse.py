"""One rehearsal: engine arguments in, every figure of the startup out."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from mmcalib.child.rehearsal import serving
from mmcalib.child.rehearsal.device.ledger import LedgerPhase, Live
from mmcalib.child.rehearsal.graphs import Graphs, estimate, with_attention
from mmcalib.child.rehearsal.install import Stage
from mmcalib.child.rehearsal.overhead import non_torch_bytes
from mmcalib.child.rehearsal.startup import Brought, brought_up
from mmcalib.domain.memory import (
    Budget,
    Clip,
    LiveTensor,
    Outputs,
    PhasePeak,
    PromptsPeak,
    Rehearsed,
)
from mmcalib.engine.messages import Rehearse
from mmcalib.models.gpus import Gpu
from mmcalib.releases import backends, compilation, kv_cache, memory
from mmcalib.releases.budget import read_budget
from mmcalib.releases.compilation import graph_mode
from mmcalib.releases.configs import served_config
from mmcalib.releases.environment import subtracts_graphs
from mmcalib.releases.release import TRIED, installed
from mmcalib.releases.runner import estimates_graphs, uses_v2_runner
from mmcalib.text import gib


def rehearse(stage: Stage, request: Rehearse) -> Rehearsed:
    """Bring vLLM's worker up on the stage's GPU and read what it found.

    Raises whatever vLLM raises for arguments that it refuses.
    """
    started = time.perf_counter()
    config = _config(request.engine_args)
    _check(config)
    graphs = estimate(config, config.scheduler_config.max_num_seqs, subtracts_graphs())
    captured, mode = compilation.capture_sizes(config), graph_mode(config)
    compilation.forgo(config)
    ranks = config.parallel_config.world_size
    outside = non_torch_bytes(ranks, counts_nccl=memory.counts_nccl())
    with brought_up(stage, config, outside) as brought:
        if not estimates_graphs(brought.worker):
            graphs = Graphs(graphs.count, 0)
        graphs = with_attention(graphs, config, brought, stage.ledger, mode)
        available = brought.available_bytes
        given_bytes = memory.given_kv_bytes(config)
        if given_bytes is None:
            available -= graphs.nbytes
        kv = lay_out(config, brought.worker, available)
        activation = brought.profile.peak_bytes - brought.profile.start_bytes
        requested = memory.requested_bytes(brought.worker, stage.gpu.total_bytes)
        budget = read_budget(config, brought.worker.model_runner, _largest_clip)
        outputs = serving.outputs_of(config, brought, stage.ledger, budget)
        merge = serving.merge_peak(config, brought, stage.ledger, budget, outputs)
        steps = tuple(serving.encoder_steps(config, brought, stage.ledger, request.steps))
        kept = requested - available - graphs.nbytes - outside - activation
        spare = 0
        if given_bytes is not None:
            # The user's word, whatever else is taken.
            loaded = stage.machine.allocator.allocated_bytes
            kept, spare = loaded, max(0, kept - loaded)
        prefills = serving.prefills(config, brought, stage.ledger, kv.layout, graphs)
        return Rehearsed(
            vllm=installed("vllm"),
            runner="V2" if uses_v2_runner(brought.worker) else "V1",
            sampler=backends.sampler(),
            attention=backends.attention(brought.worker.vllm_config),
            encoder_attention=backends.encoder_attention(config, brought.worker.model_runner),
            dtype=str(config.model_config.dtype).removeprefix("torch."),
            tensor_parallel_size=config.parallel_config.tensor_parallel_size,
            total_bytes=stage.gpu.total_bytes,
            requested_bytes=requested,
            weights_bytes=brought.weights_bytes,
            buffers_bytes=kept - brought.weights_bytes,
            activation_peak_bytes=activation,
            phases=tuple(_peak(phase) for phase in brought.phases),
            prefills=tuple(PromptsPeak(prompts, _peak(phase)) for prompts, phase in prefills),
            encoder_tokens=sum(phase.embeddings for phase in brought.phases),
            non_torch_bytes=outside,
            cudagraph_bytes=graphs.nbytes,
            cudagraphs=graphs.count,
            cudagraph_attention_bytes=graphs.attention_bytes,
            capture_sizes=captured,
            outputs=outputs,
            merge_peak_bytes=merge,
            kept_bytes=brought.kept_bytes + graphs.beside_bytes,
            spare_bytes=spare,
            steps=steps,
            encoder_cache_bytes=_encoder_cache_bytes(budget, outputs),
            kv_cache_bytes=available,
            kv_bytes_per_token=kv.bytes_per_token,
            kv_cache_tokens=kv.tokens,
            max_concurrency=kv.concurrency,
            problem=kv.problem,
            kv_blocks=None if kv.layout is None else int(kv.layout.num_blocks),
            budget=budget,
            assumptions=tuple(_assumptions(stage, config, brought, graphs, outside)),
            seconds=time.perf_counter() - started,
        )


def _config(engine_args: dict[str, Any]) -> Any:
    """The engine config of `vllm serve`, with nothing to load."""
    if engine_args.get("enable_sleep_mode"):
        raise ValueError("a rehearsal cannot follow the memory pools of enable_sleep_mode")
    return served_config({**engine_args, "load_format": "dummy"})


def _largest_clip(config: Any, processor: Any) -> Clip | None:
    # The oldest releases have no such media, and no clip is asked for.
    from mmcalib.child.largest import largest_clip

    return largest_clip(config, processor)


def _check(config: Any) -> None:
    """Raises ValueError for what one rank alone cannot show."""
    parallel = config.parallel_config
    if parallel.pipeline_parallel_size > 1:
        raise ValueError(
            "a rehearsal is of one rank, and with pipeline_parallel_size above 1 they differ"
        )
    if parallel.data_parallel_size > 1 and config.model_config.is_moe:
        raise ValueError(
            "a rehearsal is of one replica, and with data_parallel_size above 1 a mixture of "
            "experts is spread over several"
        )


def _peak(phase: LedgerPhase) -> PhasePeak:
    return PhasePeak(
        name=phase.name,
        peak_bytes=phase.peak_bytes - phase.start_bytes,
        scratch_bytes=phase.scratch_bytes,
        scratch_operation=phase.scratch_operation,
        largest=live_tensors(phase.largest),
    )


def live_tensors(found: Iterable[Live]) -> tuple[LiveTensor, ...]:
    """What the ledger names, to be told."""
    return tuple(
        LiveTensor(one.nbytes, one.operation, one.shape, one.dtype, one.module) for one in found
    )


def _encoder_cache_bytes(budget: Budget | None, outputs: Outputs | None) -> int:
    """The cache full of what the encoder makes, as wide as that is: some models keep more of an
    item than the decoder's first layer takes.
    """
    if budget is None or outputs is None:
        return 0
    return budget.encoder_cache_size * outputs.bytes_per_token


def _assumptions(
    stage: Stage, config: Any, brought: Brought, graphs: Graphs, outside: int
) -> Iterator[str]:
    gpu: Gpu = stage.gpu
    version = installed("vllm")
    if ".".join(version.split(".")[:2]) not in TRIED:
        tried = ", ".join(TRIED)
        yield f"rehearsals were tried with vLLM {tried}: with {version} figures may drift"
    yield f"total memory {gib(gpu.total_bytes)} ({gpu.total_status}: {gpu.source})"
    yield f"{gib(outside)} outside torch: an allowance"
    if graphs.count:
        assumed = graphs.nbytes - graphs.attention_bytes
        yield f"{graphs.count} CUDA graphs take {gib(assumed)}: an allowance"
    if graphs.attention_bytes:
        attention = gib(graphs.attention_bytes)
        yield f"attention keeps {attention} more in vLLM's estimate of them: computed"
    if graphs.beside_bytes:
        yield f"attention keeps {gib(graphs.beside_bytes)} that startup reserves nowhere: computed"
    if graphs.problem:
        yield f"what attention keeps beside its graphs is not known: {graphs.problem}"
    if (replicas := config.parallel_config.data_parallel_size) > 1:
        yield f"figures are those of each of {replicas} replicas, on GPUs of its own"
    yield "nothing else runs on the GPU"
    if not config.model_config.enforce_eager:
        yield "where vLLM compiles, its fused kernels stand for what torch would fuse"
    if chosen := os.environ.get("VLLM_USE_V2_MODEL_RUNNER"):
        yield f"model runner as VLLM_USE_V2_MODEL_RUNNER={chosen} says"
    if stage.device.guesses:
        asked = ", ".join(f"{name} ({count})" for name, count in stage.device.guesses.items())
        yield f"zero stood in for values that nobody knew: {asked}"
    if stage.device.whole_masks:
        yield f"every row passed {stage.device.whole_masks} masks that nobody knew"
    profiled = {phase.name for phase in brought.phases}
    if config.model_config.is_multimodal_model and "encoder" not in profiled:
        yield "vLLM profiles no encoder here: nothing is reserved for it"


@dataclass(frozen=True, slots=True)
class KvCache:
    """`tokens` and `concurrency` are None where vLLM would not start; `problem` is its reason."""

    bytes_per_token: int
    tokens: int | None
    concurrency: float | None
    problem: str = ""
    layout: Any = None


def lay_out(config: Any, worker: Any, available_bytes: int) -> KvCache:
    """Divide the available bytes as vLLM's engine core would."""
    specs = worker.get_kv_cache_spec()
    per_token = round(kv_cache.bytes_per_token(specs.values()))
    if not specs:
        return KvCache(0, 0, None, "this model keeps no KV cache")
    kv_cache.resolve_layout(config, worker, list(specs.values()))
    try:
        layout = kv_cache.kv_cache_config(config, specs, available_bytes)
    except ValueError as error:
        return KvCache(per_token, None, None, " ".join(str(error).split()))
    tokens, concurrency = kv_cache.kv_cache_tokens(config, layout)
    return KvCache(per_token, tokens, concurrency, layout=layout)
