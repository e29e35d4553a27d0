"""One rehearsal: vLLM's startup on the imaginary GPU, then what only serving asks of the model."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch

from mmcalib.child.rehearsal.ledger import LedgerPhase
from mmcalib.child.rehearsal.startup import (
    Stage,
    StartedWorker,
    note_outputs,
    start_worker,
)
from mmcalib.child.service import root_cause
from mmcalib.domain import memory
from mmcalib.domain.knobs import Setting
from mmcalib.domain.shapes import AudioShape, ImageShape, Shape, VideoShape
from mmcalib.engine.messages import Blank, Rehearse
from mmcalib.releases import models, runner
from mmcalib.releases.engine import served_config
from mmcalib.releases.platform import subtracts_graphs
from mmcalib.releases.release import TRIED, installed
from mmcalib.text import MIB, gib

# Least squares through estimates since 0.19 (benchmarks/memory_allowances.toml): the pool
# with a first graph, each graph, and of gated-delta models each layer of each graph.
FIRST_GRAPH_BYTES: Final = 42 * MIB
PER_GRAPH_BYTES: Final = 6.55 * MIB
PER_GATED_DELTA_LAYER_BYTES: Final = 0.215 * MIB
# Its workspace comes with the first step that attends; the models of that line have none.
_FLASHINFER: Final = "FLASHINFER"
# A prompt for whatever drafts there are: no longer step allocates more.
PROMPT_TOKENS: Final = 64


@dataclass(frozen=True, slots=True)
class Graphs:
    """`count` graphs of a `kind` would be captured; startup subtracts `nbytes` for them.

    `attention_bytes` of these are computed: by how much they are more for what attention keeps.
    `beside_bytes` is what attention keeps and no estimate has. `problem` is why that is not known.
    The KV cache that the estimate itself allocates takes `cache_bytes`, `short_bytes` too many.
    """

    count: int
    nbytes: int = 0
    kind: str = ""
    attention_bytes: int = 0
    beside_bytes: int = 0
    problem: str = ""
    cache_bytes: int = 0
    short_bytes: int = 0


def count_graphs(config: Any) -> int:
    """By the capture sizes and mode of the user's engine config, not of the eager one rehearsed."""
    mode, sizes = models.graph_mode(config), models.capture_sizes(config)
    full: int = sum(size <= config.scheduler_config.max_num_seqs for size in sizes)
    return len(sizes) * ("PIECEWISE" in mode) + full * ("FULL" in mode)


def estimate_graphs(started: StartedWorker, count: int, mode: str) -> Graphs:
    """What startup would subtract for so many: the allowance, and what FlashInfer keeps of the
    steps that the estimate captures, and of its first prompt and answer beside. `mode` is the
    user's.

    The estimate is free memory before and after each of its captures. The first runner counts a
    mode's second graph for all the others, and of both modes' first the larger; the second measures
    all captures in one (`profile_cudagraph_memory` in vllm/v1/worker/gpu_model_runner.py and
    gpu/cudagraph_utils.py of 0.32). Leaves the GPU as it was.
    """
    worker, ledger = started.worker, started.ledger
    backends = models.attention(worker.vllm_config).split(", ")
    attends, each, kind = _FLASHINFER in backends, PER_GRAPH_BYTES, ""
    if "GDN_ATTN" in backends:
        layers = started.config.model_config.hf_text_config.num_hidden_layers
        each, kind = PER_GATED_DELTA_LAYER_BYTES * layers, " of a gated-delta model"
    graphs = Graphs(count, round(FIRST_GRAPH_BYTES + count * each), kind=kind)
    if not attends and not started.config.model_config.is_hybrid:
        return graphs
    runner.resolve_layout(started.config, worker, list(worker.get_kv_cache_spec().values()))
    taken: list[int] = []
    free_bytes = ledger.free_bytes
    try:
        with models.estimated(worker, mode) as sampled:
            left_bytes = ledger.free_bytes
            if left_bytes < 0 or not attends:
                return dataclasses.replace(
                    graphs, cache_bytes=free_bytes - left_bytes, short_bytes=max(0, -left_bytes)
                )
            beside = ledger.booked_bytes(sampled.before)
            for step in sampled.steps:
                with ledger.phase("capture") as phase:
                    step()
                taken.append(phase.end_bytes - phase.start_bytes)
            for tokens in (PROMPT_TOKENS, 1):
                with ledger.phase("serving") as phase:
                    runner.run_prefill(worker, tokens, 1)
                beside += phase.end_bytes - phase.start_bytes
    except Exception as error:  # noqa: BLE001 - without it the allowance stands alone
        problem = " ".join(str(error).split()) or type(error).__name__
        return dataclasses.replace(graphs, problem=problem)
    more = sum(taken)
    if taken and not runner.uses_v2_runner(worker):
        first, second = taken[0], taken[1] if len(taken) > 1 else 0
        if sampled.overlaid:
            first = max(0, first - round(FIRST_GRAPH_BYTES))
        more = first + second * (sampled.full - 1)
    return Graphs(count, graphs.nbytes + more, kind, more, beside)


# Items that any model takes, of every modality: an icon, a second of video or sound.
_SMALL: Final[Mapping[str, Shape]] = {
    "image": ImageShape(256, 256),
    "video": VideoShape(8, 8.0, 1.0, 256, 256),
    "audio": AudioShape(16_000, 16_000),
}


def outputs_of(started: StartedWorker, budget: memory.Budget | None) -> memory.Outputs | None:
    """What the profile's encoder outputs hold; two small items' if it was skipped; without an
    encoder the width of the decoder's embeddings. None for a text-only model.
    """
    model_config = started.config.model_config
    if not model_config.is_multimodal_model:
        return None
    # vLLM frees those of an encoder-decoder model after their step (`EncoderDecoderCacheManager`,
    # vllm/v1/core/encoder_cache_manager.py of 0.32).
    outlive = not model_config.is_encoder_decoder
    found = [phase for phase in started.phases if phase.embeddings]
    shape = _SMALL.get((budget.profiled_modality if budget else None) or "")
    if not found and shape is not None:
        with contextlib.suppress(Exception):
            phase = _run_encoder(started, memory.EncoderStep(shape, 2))
            each = -(-phase.output_bytes // phase.embeddings)
            return memory.Outputs(each, shared=phase.storages < phase.items, outlive=outlive)
    if not found:
        width = models.embeds_width(started.config) * model_config.dtype.itemsize
        return memory.Outputs(width, outlive=outlive)
    last = found[-1]
    shared = last.storages < last.items if last.items > 1 else None
    each = -(-last.output_bytes // last.embeddings)
    return memory.Outputs(each, last.output_bytes, shared, outlive)


def encoder_steps(
    started: StartedWorker, steps: tuple[memory.EncoderStep, ...]
) -> Iterator[memory.StepPeak]:
    """Each step's peak on the GPU that holds the loaded model; one that fails says why."""
    for step in steps:
        try:
            phase = _run_encoder(started, step)
        except Exception as error:  # noqa: BLE001 - what one step lacks leaves the others alone
            yield memory.StepPeak(step, None, None, root_cause(error))
        else:
            yield memory.StepPeak(step, phase.peak_bytes - phase.start_bytes, phase.embeddings)


def _run_encoder(started: StartedWorker, step: memory.EncoderStep) -> LedgerPhase:
    """As the model runner does it: items of one modality in as few batches as it makes of them."""
    # The oldest releases have no such media; there the step says so.
    from mmcalib.child.processor import Processor, load

    modality, model_config = step.shape.modality, started.config.model_config
    loading = Setting(media_io_kwargs=model_config.multimodal_config.media_io_kwargs)
    under = Processor(model_config, runner.worker_budget(started.worker).processor, loading)
    media, _ = load(Blank(step.shape), under)
    # As the profile counts, whose kernels' workspaces stay.
    with started.ledger.phase("encoder", since=started.profile) as phase:
        batches, _ = runner.encoder_batches(started.worker, modality, media, step.items)
        note_outputs(phase, runner.run_encoder(started.worker.model_runner.model, batches))
    return phase


def prefill_steps(
    started: StartedWorker, layout: Any, graphs: Graphs
) -> Iterator[memory.PromptsPeak]:
    """Steps full of prompts, as served, of a model with recurrent layers, whose computing vLLM's
    profile leaves out (vllm#52872): one prompt, and as many as come at once. Each brings a state,
    gathered and written anew (`_forward_core`,
    vllm/model_executor/layers/mamba/gdn/qwen_gdn_linear_attn.py of 0.32), and a chunk of 64 tokens
    (`prepare_chunk_indices`). None of other models.

    Includes what attention keeps from its first step (FlashInfer's workspace) beyond startup's
    estimate of CUDA graphs.
    """
    config, ledger = started.config, started.ledger
    if not config.model_config.is_hybrid or layout is None:
        return
    tokens = config.scheduler_config.max_num_batched_tokens
    fewest = -(-tokens // config.model_config.max_model_len)
    at_once = min(config.scheduler_config.max_num_seqs, runner.sequences_at_once(layout))
    # One token is no prompt (`split_decodes_and_prefills`, v1/attention/backends/utils.py).
    most = max(fewest, min(at_once, tokens // 2))
    with ledger.phase("first step") as first:
        runner.run_prefill(started.worker, tokens, fewest)
    kept = started.profile.end_bytes - started.profile.start_bytes
    kept += graphs.beside_bytes if graphs.nbytes else first.end_bytes - first.start_bytes
    for prompts in sorted({fewest, most}):
        with ledger.phase("prefill") as phase:
            runner.run_prefill(started.worker, tokens, prompts)
        # As the profile counts, whose kernels' workspaces stay.
        phase.start_bytes -= kept
        yield memory.PromptsPeak(prompts, _peak(phase))


def merge_peak(
    started: StartedWorker, budget: memory.Budget | None, outputs: memory.Outputs | None
) -> int | None:
    """Bytes above model and cached outputs while a full step is merged; None if it is not run."""
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
    except Exception:  # noqa: BLE001 - what the merge lacks leaves the startup's figures alone
        return None
    return phase.peak_bytes - phase.start_bytes - int(cached.untyped_storage().nbytes())


def rehearse(stage: Stage, request: Rehearse) -> memory.Rehearsed:
    """Start vLLM's worker on the stage's GPU and read its figures. Raises what vLLM raises."""
    began_s = time.perf_counter()
    config = _config(request.engine_args)
    graphs = Graphs(count_graphs(config))
    captured, mode = models.capture_sizes(config), models.graph_mode(config)
    models.forgo(config)
    with start_worker(stage, config) as started:
        if graphs.count and subtracts_graphs() and runner.estimates_graphs(started.worker):
            graphs = estimate_graphs(started, graphs.count, mode)
        available = started.available_bytes
        # A size that the user gave; None where there is none, or no such option.
        given_bytes = getattr(config.cache_config, "kv_cache_memory_bytes", None)
        if given_bytes is None:
            available -= graphs.nbytes
        kv = lay_out(config, started.worker, available)
        if graphs.short_bytes:
            problem = _too_many_sequences(config, graphs, captured)
            kv = KvCache(kv.bytes_per_token, None, None, problem)
        activation = started.profile.peak_bytes - started.profile.start_bytes
        requested = int(started.worker.requested_memory)
        budget = runner.read_budget(config, started.worker.model_runner, _largest_clip)
        outputs = outputs_of(started, budget)
        merge = merge_peak(started, budget, outputs)
        steps = tuple(encoder_steps(started, request.steps))
        # Comes last: a profile would not find its memory afterwards.
        kv = fill_cache(started, kv, mode)
        kept = requested - available - graphs.nbytes - started.outside_bytes - activation
        spare = 0
        if given_bytes is not None:
            # The user's word, whatever else is taken.
            loaded = stage.machine.allocator.allocated_bytes
            kept, spare = loaded, max(0, kept - loaded)
        return memory.Rehearsed(
            vllm=installed("vllm"),
            runner="V2" if runner.uses_v2_runner(started.worker) else "V1",
            sampler=models.sampler(),
            attention=models.attention(started.worker.vllm_config),
            encoder_attention=models.encoder_attention(config, started.worker.model_runner),
            dtype=str(config.model_config.dtype).removeprefix("torch."),
            tensor_parallel_size=config.parallel_config.tensor_parallel_size,
            total_bytes=stage.gpu.total_bytes,
            requested_bytes=requested,
            weights_bytes=started.weights_bytes,
            buffers_bytes=kept - started.weights_bytes,
            activation_peak_bytes=activation,
            phases=tuple(_peak(phase) for phase in started.phases),
            prefills=tuple(prefill_steps(started, kv.layout, graphs)),
            encoder_tokens=sum(phase.embeddings for phase in started.phases),
            non_torch_bytes=started.outside_bytes,
            cudagraph_bytes=graphs.nbytes,
            cudagraphs=graphs.count,
            cudagraph_attention_bytes=graphs.attention_bytes,
            capture_sizes=captured,
            outputs=outputs,
            merge_peak_bytes=merge,
            kept_bytes=started.kept_bytes + graphs.beside_bytes,
            spare_bytes=spare,
            steps=steps,
            # As wide as the encoder's outputs: the decoder's first layer may take less.
            encoder_cache_bytes=(
                budget.encoder_cache_size * outputs.bytes_per_token if budget and outputs else 0
            ),
            kv_cache_bytes=available,
            kv_bytes_per_token=kv.bytes_per_token,
            kv_cache_tokens=kv.tokens,
            max_concurrency=kv.concurrency,
            problem=kv.problem,
            kv_blocks=None if kv.layout is None else int(kv.layout.num_blocks),
            budget=budget,
            assumptions=tuple(_assumptions(stage, started, graphs)),
            seconds=time.perf_counter() - began_s,
        )


def _too_many_sequences(config: Any, graphs: Graphs, captured: tuple[int, ...]) -> str:
    """One block for each sequence (`_init_minimal_kv_cache_for_profiling` in
    vllm/v1/worker/gpu_model_runner.py, 0.32).
    """
    count = min(config.scheduler_config.max_num_seqs, *captured[-1:])
    fits = count - -(-graphs.short_bytes * count // graphs.cache_bytes)
    return (
        f"out of memory by {gib(graphs.short_bytes)}: vLLM profiles CUDA graphs with a KV cache of "
        f"{gib(graphs.cache_bytes)}, a block for each of {count} sequences"
        + (f". Lower max_num_seqs to at most {fits}" if fits > 0 else "")
    )


def _config(engine_args: dict[str, Any]) -> Any:
    """The config of `vllm serve`, with dummy weights; ValueError if it cannot be followed."""
    if engine_args.get("enable_sleep_mode"):
        raise ValueError("a rehearsal cannot follow the memory pools of enable_sleep_mode")
    config = served_config({**engine_args, "load_format": "dummy"})
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
    return config


def _largest_clip(config: Any, processor: Any) -> memory.Clip | None:
    # The oldest releases have no such media, and no clip is asked for.
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


def _assumptions(stage: Stage, started: StartedWorker, graphs: Graphs) -> Iterator[str]:
    gpu, config = stage.gpu, started.config
    version, tried = installed("vllm"), ", ".join(TRIED)
    if ".".join(version.split(".")[:2]) not in TRIED:
        yield f"rehearsals were tried with vLLM {tried}: with {version} figures may drift"
    yield f"total memory {gib(gpu.total_bytes)} ({gpu.total_status}: {gpu.source})"
    seen = "2.8 to 4.4 GiB on unified memory" if gpu.unified else "0.02 to 0.44 GiB"
    yield f"{gib(started.outside_bytes)} outside torch: an allowance; real starts took {seen}"
    if graphs.count:
        assumed = gib(graphs.nbytes - graphs.attention_bytes)
        yield f"{graphs.count} CUDA graphs{graphs.kind} take {assumed}: an allowance"
    if graphs.attention_bytes:
        yield f"attention keeps {gib(graphs.attention_bytes)} more in vLLM's estimate: computed"
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
    profiled = {phase.name for phase in started.phases}
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
    per_token = round(runner.bytes_per_token(specs.values()))
    if not specs:
        return KvCache(0, 0, None, "this model keeps no KV cache")
    runner.resolve_layout(config, worker, list(specs.values()))
    try:
        layout = runner.kv_cache_config(config, specs, available_bytes)
    except ValueError as error:
        return KvCache(per_token, None, None, " ".join(str(error).split()))
    tokens, concurrency = runner.kv_cache_tokens(config, layout)
    return KvCache(per_token, tokens, concurrency, layout=layout)


def fill_cache(started: StartedWorker, kv: KvCache, mode: str) -> KvCache:
    """Give the worker its KV cache where the model has recurrent layers, as vLLM does before it
    captures CUDA graphs in this `mode`; without a layout where vLLM refuses it.
    """
    config = started.config
    if not config.model_config.is_hybrid or kv.layout is None:
        return kv
    try:
        with models.check_graph_mode(config, mode):
            started.worker.initialize_from_config(kv.layout)
    except ValueError as error:
        return KvCache(kv.bytes_per_token, None, None, " ".join(str(error).split()))
    return kv
