"""Start vLLM's real engine, read its memory, and replay prompts on it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from PIL import Image

from mmcalib.child.failures import exhausted_resource, refusal_reason
from mmcalib.child.processor import require_host_memory
from mmcalib.domain.memory import Budget, EngineStarted
from mmcalib.domain.traffic import BurstResult, PromptOutcome
from mmcalib.engine import messages as m
from mmcalib.models.cut import scale_to_depth
from mmcalib.processes import free_bytes
from mmcalib.releases import engine, platform, processors
from mmcalib.releases.engine import RequestWatch, one_token_sampling
from mmcalib.releases.models import record_weight_sizes
from mmcalib.releases.runner import record_graph_bytes

# Methods that read figures in the worker, and access to replayed media in any folder.
_OURS = {
    "worker_extension_cls": "mmcalib.child.worker.WorkerMethods",
    "allowed_local_media_path": "/",
}
# Sides of the blank images whose encoding times give the estimate. The first warms up. The others
# take about a second each on two cores, and differ enough to tell linear from quadratic growth.
_PROBE_SIDES_PX = (280, 560, 1120)
# With quadratic attention the larger probe costs at least 50% more per token; less is noise.
_QUADRATIC_FROM = 1.4
_LEAST_KV_BYTES = 256 << 20
# A profile may use this share of the free host memory.
_MEMORY_SHARE = 0.7
_TOO_LITTLE = "{free:.1f} GiB free, about {needed:.1f} GiB needed"


def start_engine(request: m.StartEngine, say: Callable[[str], None]) -> tuple[Any, EngineStarted]:
    """Start `vllm.LLM` with these engine arguments and read its figures.

    Raises MemoryError before loading if this machine is too small for weights and KV cache. The
    profile runs only if its estimate is within the request's budget and free memory, and if the CPU
    computes in the configured dtype. Bytes of weights and KV cache are those of that dtype.
    """
    say("loading the model into the engine")
    # On the CPU mmcalib traces the allocator's events; on a GPU vLLM's worker has the figures.
    traced = platform.current().is_cpu()
    args = {**request.engine_args, **_OURS}
    # Bytes of the configured dtype per byte of the one that the CPU computes in.
    share, reserved_bytes = 1.0, 0
    if traced:
        config = engine.offline_config(args)
        if emulates_bfloat16(config.model_config):
            share = config.model_config.dtype.itemsize / FALLBACK_DTYPE.itemsize
            args["dtype"] = str(FALLBACK_DTYPE).removeprefix("torch.")
        args["kv_cache_memory_bytes"] = round(_kv_cache_bytes(config) / share)
        # vLLM keeps an int32 and a bool per sequence and token of the context.
        # v1/worker/gpu_input_batch.py of 0.32.
        slots = int(config.scheduler_config.max_num_seqs) * int(config.model_config.max_model_len)
        reserved_bytes = args["kv_cache_memory_bytes"] + 5 * slots
    else:
        args = _as_served(args)
    started = time.perf_counter()

    def require_room(weights_bytes: int) -> None:
        if traced:
            require_host_memory(weights_bytes + reserved_bytes, _TOO_LITTLE)

    require_room(0)
    with record_weight_sizes(require_room) as sizes, record_graph_bytes() as graphs:
        llm = engine.start_llm(args)
    start_s = time.perf_counter() - started
    kv_bytes_per_token = _ask(llm, "mmcalib_kv") * share
    # A decoder layer may have two caches (Whisper), or share one with another layer.
    layers = llm.llm_engine.model_config.hf_text_config.num_hidden_layers
    budget: Budget | None = _ask(llm, "mmcalib_budget")
    modality = budget.profiled_modality if budget else None
    items = budget.profiled_items if budget else 0
    tokens = budget.profiled_embeds * items if budget else 0
    seconds_per_token, estimate_s, estimate_bytes = None, 0.0, 0.0
    if traced and modality in ("image", "video"):
        say("timing the encoder on small items")
        seconds_per_token, estimate_s, estimate_bytes = _estimate(llm, tokens)
    profile_s = peak = None
    free = free_bytes()
    most = None
    if free is not None and estimate_bytes > _MEMORY_SHARE * free:
        most = int(tokens * _MEMORY_SHARE * free / estimate_bytes)
    within_s = request.profile_budget_s
    affordable = seconds_per_token is None if within_s is None else estimate_s <= within_s
    if traced and share == 1 and affordable and most is None:
        say(f"profiling {items} × {modality or 'text'}, {tokens} tokens")
        profile_s, peak = _ask(llm, "mmcalib_profile")
    text_layers, encoder_layers = request.true_layers
    sizes = {name: round(nbytes * share) for name, nbytes in sizes.items()}
    weights, full = sum(sizes.values()), scale_to_depth(sizes, text_layers, encoder_layers)
    gpu = None
    if not traced:
        say("reading the memory of the GPU")
        gpu = replace(_ask(llm, "mmcalib_memory"), cudagraph_captured_bytes=graphs.nbytes)
        peak, weights, full = gpu.activation_peak_bytes, gpu.weights_bytes, gpu.weights_bytes
    return llm, EngineStarted(
        device=str(llm.llm_engine.vllm_config.device_config.device_type),
        start_s=start_s,
        weights_bytes=weights,
        weights_full_bytes=full,
        kv_bytes_per_token=round(kv_bytes_per_token),
        kv_full_bytes_per_token=round(kv_bytes_per_token / layers * text_layers),
        encoder_seconds_per_token=seconds_per_token,
        profile_estimate_s=estimate_s,
        profile_s=profile_s,
        activation_peak_bytes=peak,
        budget_tokens=budget.encoder_budget_tokens if budget and modality else 0,
        profiled_modality=modality,
        profiled_items=items,
        computed_in=args["dtype"] if share != 1 else None,
        most_step_tokens=most,
        gpu=gpu,
    )


def _as_served(args: dict[str, Any]) -> dict[str, Any]:
    """Add the batch limits of `vllm serve`; on a GPU `LLM` has other defaults."""
    names = ("max_num_batched_tokens", "max_num_seqs")
    if args.keys() >= {*names}:
        return args
    scheduler = engine.serve_config(args).scheduler_config
    return {name: getattr(scheduler, name) for name in names} | args


def _kv_cache_bytes(config: Any) -> int:
    """Return KV cache bytes for 1.25 requests of the whole context, if all attention is full."""
    model, parallel = config.model_config, config.parallel_config
    heads, size = model.get_num_kv_heads(parallel), model.get_head_size()
    per_token: int = 2 * model.get_num_layers(parallel) * heads * size * model.dtype.itemsize
    return max(_LEAST_KV_BYTES, per_token * int(model.max_model_len) * 5 // 4)


def _ask(llm: Any, method: str, *args: Any) -> Any:
    return llm.collective_rpc(method, args=args)[0]


def _estimate(llm: Any, tokens: int) -> tuple[float, float, float]:
    """Return small items' seconds per token; seconds (a·n + b·n²), bytes (linear) of `tokens`."""
    points = [_ask(llm, "mmcalib_encode", *_probe(llm, side)) for side in _PROBE_SIDES_PX]
    (n1, t1, _), (n2, t2, peak) = points[-2], points[-1]
    rate1, rate2 = t1 / n1, t2 / n2
    quadratic = 0.0
    if n2 > n1 and rate2 > _QUADRATIC_FROM * rate1:
        quadratic = (rate2 - rate1) / (n2 - n1)
    linear = rate2 - quadratic * n2
    return rate2, linear * tokens + quadratic * tokens**2, peak * tokens / n2


def _probe(llm: Any, side_px: int) -> tuple[str, Any]:
    """Return a blank image, or a two-frame video for an engine without images."""
    limits = llm.llm_engine.model_config.get_multimodal_config()
    if limits.get_limit_per_prompt("image") > 0:
        return "image", Image.new("RGB", (side_px, side_px))
    import numpy as np

    frames = np.zeros((2, side_px, side_px, 3), dtype=np.uint8)
    facts = {"total_num_frames": 2, "fps": 2.0, "duration": 1.0, "frames_indices": [0, 1]}
    return "video", (frames, {**facts, "video_backend": "opencv", "do_sample_frames": False})


# Every CPU supports it.
FALLBACK_DTYPE = torch.float32


def emulates_bfloat16(model_config: Any) -> bool:
    """Return True if this CPU only emulates the model's bfloat16, and the model can run without it.

    Emulation took 200 times as long as float32 for 2048 × 2048. Quantised weights are not bfloat16.
    """
    if model_config.quantization is not None or model_config.dtype != torch.bfloat16:
        return False
    return not torch.ops.mkldnn._is_mkldnn_bf16_supported()


def run_burst(llm: Any, request: m.Replay, prompting: processors.PromptSettings) -> BurstResult:
    """Admit and abort the prompts of `admit`; queue the others and run until all are answered."""
    started = time.perf_counter()
    queued: dict[str, m.ReplayPrompt] = {}
    answers: list[PromptOutcome] = []
    admitted: list[PromptOutcome] = []
    start_bytes = _peak(llm, None)
    with RequestWatch(llm) as watch:
        for prompt in request.admit:
            if rejected := _enqueue(llm, prompt, prompting):
                admitted.append(rejected)
                continue
            admitted.append(PromptOutcome(prompt.origin, "", watch.item_tokens[watch.last_added]))
            llm.llm_engine.abort_request([watch.last_added])
        for prompt in request.prompts:
            if rejected := _enqueue(llm, prompt, prompting):
                answers.append(rejected)
                continue
            queued[watch.last_added] = prompt
        outputs = {o.request_id: o for o in llm.wait_for_completion(use_tqdm=False)}
    for request_id, prompt in queued.items():
        has_answer = request_id in outputs and outputs[request_id].finished
        problem = "" if has_answer else "the engine did not answer"
        answers.append(PromptOutcome(prompt.origin, problem, watch.item_tokens[request_id]))
    return BurstResult(
        tuple(answers),
        time.perf_counter() - started,
        watch.largest_encoder_step_tokens,
        tuple(admitted),
        peak_bytes=_peak(llm, start_bytes),
    )


def _peak(llm: Any, start_bytes: int | None) -> int | None:
    """Return the first worker's GPU bytes now, or its peak above them; None without a GPU."""
    return int(_ask(llm, "mmcalib_peak", start_bytes)) if platform.current().is_cuda() else None


def _enqueue(
    llm: Any, prompt: m.ReplayPrompt, prompting: processors.PromptSettings
) -> PromptOutcome | None:
    """Queue one prompt. Return its outcome if vLLM rejects the prompt or its answer."""
    sampling, request = one_token_sampling(), prompt.request
    try:
        options = processors.enqueue_options(
            request.messages, request.fields, llm.model_config, prompting
        )
        llm.enqueue_chat([request.messages], sampling, use_tqdm=False, **options)
    except Exception as error:  # noqa: BLE001 - replay looks for rejections
        no_memory = exhausted_resource(error) == "memory"
        return PromptOutcome(prompt.origin, refusal_reason(error), (), no_memory)
    return None
