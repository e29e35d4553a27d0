"""One rehearsal: vLLM's startup on the imaginary GPU, then steps that only serving runs."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final

import torch

from mmcalib.child.failures import root_cause
from mmcalib.child.rehearsal.ledger import LedgerPhase
from mmcalib.child.rehearsal.startup import (
    ImaginaryMachine,
    StartedWorker,
    record_outputs,
    start_worker,
)
from mmcalib.domain import memory
from mmcalib.domain.knobs import Setting
from mmcalib.domain.shapes import AudioShape, ImageShape, Shape, VideoShape
from mmcalib.engine.messages import Blank, Rehearse
from mmcalib.releases import models, platform, runner
from mmcalib.releases.constants import UNIFIED_NON_TORCH_BYTES
from mmcalib.releases.engine import serve_config
from mmcalib.releases.release import REHEARSED_RELEASES, version_of
from mmcalib.remedies.memory import UTILIZATION
from mmcalib.text import GIB, MIB, gib

# Least squares through vLLM's estimates since 0.19 (benchmarks/memory_allowances.toml): the pool
# with the first graph, each graph, and each layer of each graph of gated-delta models.
FIRST_GRAPH_BYTES: Final = 42 * MIB
PER_GRAPH_BYTES: Final = 6.55 * MIB
PER_GATED_DELTA_LAYER_BYTES: Final = 0.215 * MIB
# FlashInfer allocates its workspace in the first step with attention; no fitted model uses it.
_FLASHINFER: Final = "FLASHINFER"
# A prompt longer than any draft; longer steps allocate no more.
PROMPT_TOKENS: Final = 64


@dataclasses.dataclass(frozen=True, slots=True)
class Graphs:
    """CUDA graphs that vLLM would capture, `count` of a `kind`; startup subtracts `nbytes`.

    `attention_bytes` is the computed part of them that attention keeps. `unreserved_bytes` is what
    attention keeps outside the estimate. `problem` is why these are unknown. The estimate allocates
    a KV cache of `cache_bytes`, which is `short_bytes` too large for the GPU.
    """

    count: int
    nbytes: int = 0
    kind: str = ""
    attention_bytes: int = 0
    unreserved_bytes: int = 0
    problem: str = ""
    cache_bytes: int = 0
    short_bytes: int = 0


def count_graphs(config: Any) -> int:
    """Count CUDA graphs by the user's engine config; the rehearsed one is eager."""
    mode, sizes = models.graph_mode(config), models.capture_sizes(config)
    full: int = sum(size <= config.scheduler_config.max_num_seqs for size in sizes)
    return len(sizes) * ("PIECEWISE" in mode) + full * ("FULL" in mode)


def assume_graphs(started: StartedWorker, count: int) -> Graphs:
    """Return the allowance for `count` graphs, of which vLLM's startup may subtract nothing."""
    each, kind = PER_GRAPH_BYTES, ""
    if "GDN_ATTN" in models.attention_backends(started.worker.vllm_config):
        layers = started.config.model_config.hf_text_config.num_hidden_layers
        each, kind = PER_GATED_DELTA_LAYER_BYTES * layers, " of a gated-delta model"
    return Graphs(count, round(FIRST_GRAPH_BYTES + count * each), kind=kind)


def estimate_graphs(started: StartedWorker, count: int, mode: str) -> Graphs:
    """Compute what startup subtracts for `count` graphs in the user's `mode`; restore the GPU.

    It is the allowance plus what FlashInfer keeps from captured steps, and from its first prompt
    and answer. vLLM compares free memory before and after captures. Its V1 runner counts a mode's
    second graph for all others, and the larger of both modes' first graphs; V2 measures all
    captures at once (`profile_cudagraph_memory` in vllm/v1/worker/gpu_model_runner.py and
    gpu/cudagraph_utils.py of 0.32).
    """
    worker, ledger = started.worker, started.ledger
    has_flashinfer = uses_flashinfer(worker)
    graphs = assume_graphs(started, count)
    if not has_flashinfer and not started.config.model_config.is_hybrid:
        return graphs
    runner.resolve_layout(started.config, worker, list(worker.get_kv_cache_spec().values()))
    captured_bytes: list[int] = []
    free_bytes = ledger.free_bytes
    try:
        with models.prepare_graph_estimate(worker, mode) as captures:
            free_after = ledger.free_bytes
            if free_after < 0 or not has_flashinfer:
                return dataclasses.replace(
                    graphs, cache_bytes=free_bytes - free_after, short_bytes=max(0, -free_after)
                )
            outside = ledger.booked_bytes(captures.setup_buffers)
            for step in captures.steps:
                with ledger.phase("capture") as phase:
                    step()
                captured_bytes.append(phase.end_bytes - phase.start_bytes)
            for tokens in (PROMPT_TOKENS, 1):
                with ledger.phase("serving") as phase:
                    runner.run_prefill(worker, tokens, 1)
                outside += phase.end_bytes - phase.start_bytes
    except Exception as error:  # noqa: BLE001 - only the allowance remains
        return dataclasses.replace(graphs, problem=root_cause(error))
    more = sum(captured_bytes)
    if captured_bytes and not runner.uses_v2_runner(worker):
        first, second, *_ = (*captured_bytes, 0)
        if captures.is_overlaid:
            first = max(0, first - round(FIRST_GRAPH_BYTES))
        more = first + second * (captures.full - 1)
    return Graphs(count, graphs.nbytes + more, graphs.kind, more, outside)


def uses_flashinfer(worker: Any) -> bool:
    return _FLASHINFER in models.attention_backends(worker.vllm_config).split(", ")


def allocations_after_pool(
    started: StartedWorker, graphs: Graphs
) -> tuple[tuple[memory.Allocation, ...], list[str]]:
    """Return allocations after the KV cache outside vLLM's estimates, and what is not rehearsed."""
    found, unknown = list[memory.Allocation](), list[str]()
    if graphs.count and not graphs.nbytes:
        nbytes = assume_graphs(started, graphs.count).nbytes
        found.append(memory.Allocation(memory.GRAPHS, nbytes, "assumed"))
    workspace = "FlashInfer's workspace"
    if graphs.unreserved_bytes:
        found.append(memory.Allocation(workspace, graphs.unreserved_bytes, "rehearsed"))
    elif uses_flashinfer(started.worker) and not graphs.nbytes:
        workspace_bytes = platform.flashinfer_workspace_bytes()
        found.append(memory.Allocation(workspace, workspace_bytes, "computed"))
    if runner.uses_v2_runner(started.worker) and models.runs_warmup(started.config):
        # Before graphs are captured. V1's warm-up, like FlashInfer's tuning, repeats the profile.
        reserved = [p.peak_bytes - p.start_bytes for p in started.phases if p.name != "encoder"]
        phase = started.ledger.phase("sampler", since=started.profile)
        try:
            with phase as warm:
                runner.warm_up_sampler(started.worker)
        except Exception as error:  # noqa: BLE001 - the other figures are still valid
            unknown.append(f"the sampler's warm-up was not rehearsed: {root_cause(error)}")
        else:
            more = warm.peak_bytes - warm.start_bytes - max(reserved, default=0) - graphs.nbytes
            if more > 0:
                found.append(memory.Allocation("sampler warm-up", more, "rehearsed"))
    return tuple(found), unknown


# Small items that every model accepts: an icon, a second of video or sound.
_SMALL: Final[Mapping[str, Shape]] = {
    "image": ImageShape(256, 256),
    "video": VideoShape(8, 8.0, 1.0, 256, 256),
    "audio": AudioShape(16_000, 16_000),
}


def measure_outputs(
    started: StartedWorker, budget: memory.Budget | None
) -> memory.EncoderOutputs | None:
    """Return the memory of the profile's encoder outputs; None for a text-only model.

    If the profile skipped the encoder, it runs two small items. A model without an encoder gets the
    width of the decoder's embeddings.
    """
    model_config = started.config.model_config
    if not model_config.is_multimodal_model:
        return None
    # vLLM frees outputs of an encoder-decoder model after their step (`EncoderDecoderCacheManager`,
    # vllm/v1/core/encoder_cache_manager.py of 0.32).
    outlive = not model_config.is_encoder_decoder
    encoded = [phase for phase in started.phases if phase.embeddings]
    shape = _SMALL.get((budget.profiled_modality if budget else None) or "")
    held_bytes = encoded[-1].output_bytes if encoded else 0
    if not encoded and shape is not None:
        with contextlib.suppress(Exception):
            encoded = [_run_encoder(started, memory.EncoderStep(shape, 2))]
    if not (encoded and encoded[-1].embeddings):
        width = models.embeds_width(started.config) * model_config.dtype.itemsize
        return memory.EncoderOutputs(width, outlive_request=outlive)
    last = encoded[-1]
    shared = last.storages < last.items if last.items > 1 else None
    each = -(-last.output_bytes // last.embeddings)
    return memory.EncoderOutputs(each, held_bytes, shared, outlive)


def encode_steps(
    started: StartedWorker, steps: tuple[memory.EncoderStep, ...]
) -> Iterator[memory.StepPeak]:
    """Yield each step's peak above the loaded model, or the reason why the step failed."""
    for step in steps:
        try:
            phase = _run_encoder(started, step)
        except Exception as error:  # noqa: BLE001 - the other steps still run
            yield memory.StepPeak(step, None, None, root_cause(error))
        else:
            yield memory.StepPeak(step, phase.peak_bytes - phase.start_bytes, phase.embeddings)


def _run_encoder(started: StartedWorker, step: memory.EncoderStep) -> LedgerPhase:
    """Run items of one modality in as few batches as the model runner makes."""
    # Imported here, because the oldest releases do not have vLLM's media modules; the step fails.
    from mmcalib.child.processor import Processor, load

    modality, model_config = step.shape.modality, started.config.model_config
    loading = Setting(media_io_kwargs=model_config.multimodal_config.media_io_kwargs)
    under = Processor(model_config, runner.worker_budget(started.worker).processor, loading)
    media, _ = load(Blank(step.shape), under)
    # Counts from the profile's start, because its kernels' workspaces stay.
    with started.ledger.phase("encoder", since=started.profile) as phase:
        batches, _ = runner.encoder_batches(started.worker, modality, media, step.items)
        record_outputs(phase, runner.run_encoder(started.worker.model_runner.model, batches))
    return phase


def prefill_steps(
    started: StartedWorker, layout: Any, graphs: Graphs
) -> Iterator[memory.PromptsPeak]:
    """Yield peaks of full prefill steps of a model with recurrent layers; nothing for others.

    vLLM's profile skips these layers' computation (vllm#52872). The steps have one prompt, and as
    many as may run at once. Each prompt adds a state, gathered and written again (`_forward_core`,
    vllm/model_executor/layers/mamba/gdn/qwen_gdn_linear_attn.py of 0.32), and a chunk of 64 tokens
    (`prepare_chunk_indices`). Peaks include what attention keeps from its first step (FlashInfer's
    workspace) beyond startup's estimate of CUDA graphs.
    """
    config, ledger = started.config, started.ledger
    if not config.model_config.is_hybrid or layout is None:
        return
    tokens = config.scheduler_config.max_num_batched_tokens
    fewest = -(-tokens // config.model_config.max_model_len)
    # Each request needs a block or state per group; one block is vLLM's.
    states = (int(layout.num_blocks) - 1) // max(1, len(layout.kv_cache_groups))
    at_once = min(config.scheduler_config.max_num_seqs, states)
    # One token counts as decode (`split_decodes_and_prefills`, v1/attention/backends/utils.py).
    most = max(fewest, min(at_once, tokens // 2))
    with ledger.phase("first step") as first:
        runner.run_prefill(started.worker, tokens, fewest)
    kept_bytes = started.profile.end_bytes - started.profile.start_bytes
    kept_bytes += graphs.unreserved_bytes if graphs.nbytes else first.end_bytes - first.start_bytes
    for prompts in sorted({fewest, most}):
        with ledger.phase("prefill") as phase:
            runner.run_prefill(started.worker, tokens, prompts)
        # Counts from the profile's start, because its kernels' workspaces stay.
        phase.start_bytes -= kept_bytes
        yield memory.PromptsPeak(prompts, _peak(phase))


def merge_peak(
    started: StartedWorker, budget: memory.Budget | None, outputs: memory.EncoderOutputs | None
) -> int | None:
    """Return peak bytes above model and cached outputs of a full step's merge; None if it fails."""
    model_config = started.config.model_config
    if budget is None or outputs is None or model_config.is_encoder_decoder:
        return None
    model, dtype = started.worker.model_runner.model, model_config.dtype
    tokens = min(budget.max_num_batched_tokens, budget.encoder_cache_size)
    if not tokens or not hasattr(model, "embed_input_ids"):
        return None
    device = started.worker.device
    width = outputs.bytes_per_token // dtype.itemsize
    cached = torch.empty(tokens, width, dtype=dtype, device=device)
    ids = torch.zeros(tokens, dtype=torch.int32, device=device)
    try:
        with started.ledger.phase("merge", since=started.profile) as phase:
            model.embed_input_ids(
                ids,
                multimodal_embeddings=[cached],
                is_multimodal=torch.ones(tokens, dtype=torch.bool, device="cpu"),
            )
    except Exception:  # noqa: BLE001 - the startup's figures are still valid
        return None
    return phase.peak_bytes - phase.start_bytes - int(cached.untyped_storage().nbytes())


def rehearse(machine: ImaginaryMachine, request: Rehearse) -> memory.RehearsedMemory:
    """Start vLLM's worker on the imaginary GPU, and read its memory. Raises vLLM's exceptions."""
    start_s = time.perf_counter()
    config = _config(request.engine_args)
    graphs, division = Graphs(count_graphs(config)), runner.divide_gpu(config, request.engine_args)
    captured, mode = models.capture_sizes(config), models.graph_mode(config)
    models.disable_compilation(config)
    machine.beside_bytes = request.beside_bytes
    with start_worker(machine, config) as started:
        if graphs.count and (division.is_extensible or runner.subtracts_graphs(started.worker)):
            graphs = estimate_graphs(started, graphs.count, mode)
        available = started.available_bytes
        # The user's KV cache size; None if unset, or without this option.
        set_bytes = getattr(config.cache_config, "kv_cache_memory_bytes", None)
        if set_bytes is None:
            available -= graphs.nbytes
        activation = started.profile.peak_bytes - started.profile.start_bytes
        requested = int(started.worker.requested_memory)
        budget = runner.read_budget(config, started.worker.model_runner, _largest_clip)
        outputs = measure_outputs(started, budget)
        merge = merge_peak(started, budget, outputs)
        steps = tuple(encode_steps(started, request.steps))
        after_pool, unknown = allocations_after_pool(started, graphs)
        kept_bytes = requested - available - graphs.nbytes - started.non_torch_bytes - activation
        free, spare = machine.ledger.gpu.free_at_start, 0
        refusal = runner.refuse_start(started.worker, free)
        nccl = machine.gpu.free_at_start - free
        if division.is_extensible:
            # Sized after all of these, by what is free.
            more, before = max(0, requested - free), sum(one.nbytes for one in after_pool)
            left = available - more - before
            spare = division.reserve_bytes(activation, left)
            requested, kept_bytes = requested - more, kept_bytes + before
            available, after_pool = left - spare, ()
            is_shared = machine.gpu.free_bytes is not None
            is_shared &= request.engine_args.get(UTILIZATION) is None
            refusal = f"other processes use the GPU, and {UTILIZATION} is not set" * is_shared
        problem = _too_many_sequences(config, graphs, captured) if graphs.short_bytes else ""
        # Last, because a profile needs this memory.
        kv = plan_kv_cache(started, available, mode, problem)
        if set_bytes is not None:
            # vLLM uses the user's size regardless of other memory.
            loaded = machine.ledger.allocator.allocated_bytes + machine.ledger.local_bytes
            kept_bytes, spare = loaded, max(0, kept_bytes - loaded)
        context = config.model_config.max_model_len  # vLLM may have fitted it to the KV cache.
        return memory.RehearsedMemory(
            vllm=version_of("vllm"),
            division=division,
            runner="V2" if runner.uses_v2_runner(started.worker) else "V1",
            sampler=models.sampler_name(),
            attention=models.attention_backends(started.worker.vllm_config),
            encoder_attention=models.encoder_attention_backends(
                config, started.worker.model_runner
            ),
            dtype=str(config.model_config.dtype).removeprefix("torch."),
            tensor_parallel_size=config.parallel_config.tensor_parallel_size,
            total_bytes=machine.gpu.total_bytes,
            requested_bytes=requested,
            weights_bytes=started.weights_bytes,
            buffers_bytes=kept_bytes - started.weights_bytes,
            activation_peak_bytes=activation,
            phases=tuple(_peak(phase) for phase in started.phases),
            prefills=tuple(prefill_steps(started, kv.layout, graphs)),
            encoder_tokens=sum(phase.embeddings for phase in started.phases),
            non_torch_bytes=started.non_torch_bytes,
            cudagraph_bytes=graphs.nbytes,
            cudagraphs=graphs.count,
            cudagraph_attention_bytes=graphs.attention_bytes,
            capture_sizes=captured,
            outputs=outputs,
            merge_peak_bytes=merge,
            kept_bytes=started.kept_bytes + graphs.unreserved_bytes * (not division.is_extensible),
            spare_bytes=spare,
            stack_bytes=started.stack_bytes,
            steps=steps,
            free_bytes=free,
            refusal=refusal,
            before_snapshot=(memory.Allocation("NCCL", nccl, "assumed"),) if nccl else (),
            after_pool=after_pool,
            # With the width of the encoder's outputs, because the decoder's may be smaller.
            encoder_cache_bytes=(
                budget.encoder_cache_size * outputs.bytes_per_token if budget and outputs else 0
            ),
            kv_cache_bytes=available,
            kv_bytes_per_token=kv.bytes_per_token,
            kv_cache_tokens=kv.tokens,
            max_concurrency=kv.concurrency,
            problem=kv.problem,
            kv_blocks=None if kv.layout is None else int(kv.layout.num_blocks),
            budget=budget and dataclasses.replace(budget, max_model_len=context),
            assumptions=(*_assumptions(machine, started, graphs), *unknown),
            seconds=time.perf_counter() - start_s,
        )


def _too_many_sequences(config: Any, graphs: Graphs, captured: tuple[int, ...]) -> str:
    """Describe `_init_minimal_kv_cache_for_profiling`'s error (v1/worker/gpu_model_runner.py)."""
    count = min(config.scheduler_config.max_num_seqs, *captured[-1:])
    fits = count - -(-graphs.short_bytes * count // graphs.cache_bytes)
    return (
        f"{gib(graphs.short_bytes)} too little memory: vLLM profiles CUDA graphs with a KV cache "
        f"of {gib(graphs.cache_bytes)}, one block for each of {count} sequences"
        + (f". Lower max_num_seqs to at most {fits}" if fits > 0 else "")
    )


def _config(engine_args: dict[str, Any]) -> Any:
    """Return the config of `vllm serve` with dummy weights. Raises ValueError if unsupported."""
    if engine_args.get("enable_sleep_mode"):
        raise ValueError("cannot rehearse enable_sleep_mode, which uses other memory pools")
    config = serve_config({**engine_args, "load_format": "dummy"})
    parallel = config.parallel_config
    if parallel.pipeline_parallel_size > 1:
        raise ValueError(
            "cannot rehearse pipeline_parallel_size above 1, because its ranks differ: use 1"
        )
    if parallel.data_parallel_size > 1 and config.model_config.is_moe:
        raise ValueError(
            "cannot rehearse data_parallel_size above 1 for a mixture of experts, which vLLM "
            "spreads over the replicas: use 1"
        )
    return config


def _largest_clip(config: Any, processor: Any) -> memory.Clip | None:
    # Imported here, because the oldest releases do not have vLLM's media modules.
    from mmcalib.child.processor import largest_clip

    return largest_clip(config, processor)


def _peak(phase: LedgerPhase) -> memory.PhasePeak:
    return memory.PhasePeak(
        name=phase.name,
        peak_bytes=phase.peak_bytes - phase.start_bytes,
        scratch_bytes=phase.scratch_bytes,
        scratch_operation=phase.scratch_operation,
        largest=phase.largest,
    )


def _assumptions(
    machine: ImaginaryMachine, started: StartedWorker, graphs: Graphs
) -> Iterator[str]:
    gpu, config = machine.gpu, started.config
    version, tried = version_of("vllm"), ", ".join(REHEARSED_RELEASES)
    if ".".join(version.split(".")[:2]) not in REHEARSED_RELEASES:
        yield f"tested with vLLM {tried}; with {version} the figures may be off"
    yield f"total memory {gib(gpu.total_bytes)} ({gpu.total_status}: {gpu.source})"
    measured = "0.02 to 0.44 GiB"
    if gpu.unified:
        least, most = (nbytes / GIB for nbytes in UNIFIED_NON_TORCH_BYTES)
        measured = f"{least:.1f} to {most:.1f} GiB on unified memory"
    allowance = started.non_torch_bytes - machine.beside_bytes
    yield f"allowance for non-torch memory: {gib(allowance)} (measured: {measured})"
    if nbytes := machine.ledger.local_bytes:
        largest = f"{machine.ledger.local_source}, by Triton {version_of('triton')}"
        yield f"CUDA keeps {gib(nbytes)} for kernels' stacks, the largest of {largest} (computed)"
    if graphs.count:
        assumed = gib(graphs.nbytes - graphs.attention_bytes)
        yield f"allowance for {graphs.count} CUDA graphs{graphs.kind}: {assumed}"
    if graphs.attention_bytes:
        yield f"vLLM's graph estimate adds {gib(graphs.attention_bytes)} for attention (computed)"
    if graphs.unreserved_bytes:
        yield f"startup does not reserve {gib(graphs.unreserved_bytes)} for attention (computed)"
    if graphs.problem:
        yield f"attention's memory beyond its graphs is unknown: {graphs.problem}"
    if (replicas := config.parallel_config.data_parallel_size) > 1:
        yield f"figures are for each of {replicas} replicas, which have separate GPUs"
    taken = gpu.total_bytes - gpu.free_at_start
    whose = "the CUDA context" if gpu.free_bytes is None else "the CUDA context and other processes"
    yield f"{gib(taken)} are taken before vLLM starts, by {whose}"
    if not config.model_config.enforce_eager:
        yield "vLLM's fused kernels take as much memory as the kernels that torch compiles"
    if version_set := os.environ.get("VLLM_USE_V2_MODEL_RUNNER"):
        yield f"VLLM_USE_V2_MODEL_RUNNER={version_set} chooses the model runner"
    if machine.device.guesses:
        reads = ", ".join(f"{name} ({count})" for name, count in machine.device.guesses.items())
        yield f"unknown values count as zero: {reads}"
    if machine.device.whole_masks:
        yield f"{machine.device.whole_masks} unknown masks select every row"
    profiled = {phase.name for phase in started.phases}
    if config.model_config.is_multimodal_model and "encoder" not in profiled:
        yield "vLLM does not profile the encoder here, and reserves no memory for it"


@dataclasses.dataclass(frozen=True, slots=True)
class KvCache:
    """The KV cache; `tokens` and `concurrency` are None if vLLM would not start (`problem`)."""

    bytes_per_token: int
    tokens: int | None = None
    concurrency: float | None = None
    problem: str = ""
    layout: Any = None


def plan_kv_cache(started: StartedWorker, available_bytes: int, mode: str, problem: str) -> KvCache:
    """Divide the KV cache unless there is a `problem`; give it to a hybrid for graph `mode`."""
    config, worker = started.config, started.worker
    specs = worker.get_kv_cache_spec()
    per_token = round(runner.bytes_per_token(specs.values()))
    if problem:
        return KvCache(per_token, problem=problem)
    if not specs:
        return KvCache(0, 0, problem="this model does not use a KV cache")
    runner.resolve_layout(config, worker, list(specs.values()))
    try:
        layout = runner.kv_cache_config(config, specs, available_bytes)
        tokens, concurrency = runner.kv_cache_tokens(config, layout)
        if config.model_config.is_hybrid:
            with models.check_graph_mode(config, mode):
                worker.initialize_from_config(layout)
    except ValueError as error:
        return KvCache(per_token, problem=" ".join(str(error).split()))
    return KvCache(per_token, tokens, concurrency, layout=layout)
