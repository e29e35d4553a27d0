"""Checks of options that take memory outside vLLM's profile."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from mmcalib.checks import catalogue as ids
from mmcalib.checks.check import Check, Taken, computed_size, yaml_line
from mmcalib.checks.facts import CheckFacts
from mmcalib.derive.limits import MIN_RESERVE_RATIO
from mmcalib.releases import constants
from mmcalib.text import GIB, gib

_RATE = "video_pruning_rate"
_TP_MODE = "mm_encoder_tp_mode"
_IPC_MEMORY = "mm_ipc_gpu_memory_gb"


def check_trusted_kwargs(facts: CheckFacts) -> Iterator[Check]:
    """By default vLLM answers HTTP 400 to a request with `mm_processor_kwargs` or `media_io_kwargs`
    (`validate_request_mm_kwargs`, vllm/entrypoints/generate/base/protocol.py of 0.32).
    """
    if not facts.options.served.get("trust_request_mm_kwargs"):
        return
    limit = facts.configuration.budget.encoder_budget_tokens
    yield Check(
        ids.REQUEST_OPTIONS,
        "warn",
        "trust_request_mm_kwargs: requests may set mm_processor_kwargs and media_io_kwargs "
        "(validate_request_mm_kwargs, vllm/entrypoints/generate/base/protocol.py), so no cap of "
        f"this file holds. An item may take the whole encoder cache, {limit:,} tokens, and any "
        "amount of host memory",
        "remove trust-request-mm-kwargs unless you trust every client",
    )


def check_pruning(facts: CheckFacts) -> Iterator[Check]:
    """Only kept tokens have placeholders (`compute_retained_tokens_count`,
    vllm/multimodal/video_prune/evs.py of 0.32) and count in the encoder budget. Models prune after
    they encode (`_postprocess_video_embeds_evs`, qwen2_5_vl.py and qwen3_vl.py).
    """
    rate, budget = facts.configuration.engine_args.get(_RATE) or 0, facts.configuration.budget
    if not rate or not facts.configuration.items_per_prompt.get("video"):
        return
    times, limit = 1 / (1 - rate), budget.encoder_budget_tokens
    step = facts.options.steps.get("video")
    peak = step.encoder_peak_bytes if step else None
    more = None if peak is None else round(peak * (times - 1))
    batch = int(budget.max_num_batched_tokens * (1 - rate))
    yield Check(
        ids.PRUNING_MEMORY,
        "warn",
        f"{_RATE} {rate:g}: a step of {limit:,} kept tokens encodes up to {times:.2f} times as "
        f"many, {int(limit * times):,}, and the profile omits them{computed_size(more)}: "
        "vLLM budgets kept tokens (compute_retained_tokens_count, "
        "vllm/multimodal/video_prune/evs.py) and encodes all",
        f"{yaml_line('max_num_batched_tokens', batch)} if no item takes more, fewer max-num-seqs, "
        "or a lower gpu-memory-utilization",
        taken=None if more is None else Taken(f"frames that {_RATE} drops", more),
    )


def check_tower_parallel(facts: CheckFacts) -> Iterator[Check]:
    """vLLM assigns whole items to ranks (`get_load_balance_assignment`,
    vllm/model_executor/models/vision.py of 0.32). The profile's many equal items spread over all
    ranks; one video as large as the budget goes to one rank.
    """
    args, budget = facts.configuration.engine_args, facts.configuration.budget
    ranks = args.get("tensor_parallel_size") or 1
    if args.get(_TP_MODE) != "data" or ranks < 2:
        return
    # On the rank with most of the profile's items.
    profiled = math.ceil(budget.profiled_items / ranks) * budget.profiled_embeds
    counts = facts.configuration.items_per_prompt
    largest = max((budget.largest_item(m) for m, n in counts.items() if n), default=0)
    detail = (
        f"{_TP_MODE} data: the profile of {budget.profiled_items} × {budget.profiled_modality} "
        f"puts {profiled:,} tokens on each of {ranks} ranks, one item may put {largest:,} on one"
        " (get_load_balance_assignment, vllm/model_executor/models/vision.py)"
    )
    if not largest or profiled >= MIN_RESERVE_RATIO * largest:
        yield Check(ids.RANK_ITEM, "pass", detail)
        return
    more, peak = None, facts.options.encoder_peak_bytes
    if peak is not None and profiled:
        more = round(peak * (largest / profiled - 1))
    yield Check(
        ids.RANK_ITEM,
        "warn",
        f"{detail}{computed_size(more)}, which is not reserved",
        "mm-encoder-tp-mode: weights, or a batch whose part on one rank holds any item",
        taken=None if more is None else Taken("a largest item on one rank", more),
    )


def check_prompt_logprobs(facts: CheckFacts) -> Iterator[Check]:
    """Assume that `max_logprobs` means they are served. No value forbids `prompt_logprobs`: a
    request for 0 takes the same logits (`_get_prompt_logprobs_dict`,
    vllm/v1/worker/gpu_model_runner.py; `_validate_logprobs`, vllm/sampling_params.py of 0.32).
    """
    most = facts.configuration.engine_args.get("max_logprobs")
    if most is None:
        return
    budget, vocab_size = facts.configuration.budget, facts.options.vocab_size
    memory = facts.options.memory
    tokens = min(budget.max_num_batched_tokens, budget.max_model_len)
    source = "_get_prompt_logprobs_dict, vllm/v1/worker/gpu_model_runner.py"
    if memory is not None and memory.runner == "V2":
        tokens = min(tokens, constants.V2_LOGPROBS_TOKENS)
        source = "PromptLogprobsWorker, vllm/v1/worker/gpu/sample/prompt_logprob.py"
    nbytes = tokens * vocab_size * constants.LOGIT_BYTES or None
    detail = (
        f"max_logprobs {most}: a request with prompt_logprobs takes logits of all {tokens:,} "
        f"tokens of a chunk, {vocab_size:,} each{computed_size(nbytes)}, outside the profile "
        f"({source})"
    )
    taken = None if nbytes is None else Taken("logits of prompt_logprobs", nbytes)
    if nbytes and memory is not None and nbytes <= memory.activation_peak_bytes:
        detail += f"; the activation peak reserves {gib(memory.activation_peak_bytes)} (rehearsed)"
        yield Check(ids.LOGPROBS_MEMORY, "pass", detail, taken=taken)
        return
    remedy = (
        f"{yaml_line('max_num_batched_tokens', max(1, tokens // 4))} takes a quarter of it, if no "
        "item is larger; or a proxy that rejects prompt_logprobs, as vLLM has no option for that"
    )
    yield Check(ids.LOGPROBS_MEMORY, "warn", detail, remedy, taken=taken)


def check_encoder_graphs(facts: CheckFacts) -> Iterator[Check]:
    """vLLM captures a graph for each token budget, in a pool of their own
    (`EncoderCudaGraphManager`, vllm/v1/worker/encoder_cudagraph.py of 0.32). Larger steps run
    eagerly. The largest graph holds as much as a profile of the same tokens.
    """
    args, budget = facts.configuration.engine_args, facts.configuration.budget
    compilation = args.get("compilation_config")
    if not isinstance(compilation, Mapping) or not compilation.get("cudagraph_mm_encoder"):
        return
    if args.get("enforce_eager"):
        detail = "with enforce_eager vLLM captures no graph: cudagraph_mm_encoder has no effect"
        yield Check(ids.GRAPHS_MEMORY, "warn", detail, "remove one of the two")
        return
    # By default the largest is a whole batch (`_generate_budgets`); the smallest is the model's.
    given = compilation.get("encoder_cudagraph_token_budgets")
    largest = max(map(int, given or [min(budget.max_num_batched_tokens, budget.max_model_len)]))
    memory, most = facts.options.memory, budget.encoder_budget_tokens
    pool, peak = None, facts.options.encoder_peak_bytes
    if memory is not None and peak is not None and memory.encoder_tokens:
        pool = round(peak * largest / memory.encoder_tokens)
    eager = ""
    if largest < most:
        eager = (
            f"; a larger step, of up to {most:,} tokens, runs eagerly and takes the profiled "
            "memory too"
        )
    yield Check(
        ids.GRAPHS_MEMORY,
        "warn",
        f"cudagraph_mm_encoder: its graphs, the largest of {largest:,} tokens, have their own pool"
        f"{computed_size(pool)}, which the rehearsal leaves out. vLLM takes it from the KV cache "
        "(profile_cudagraph_memory, vllm/v1/worker/gpu_model_runner.py) unless "
        f"VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS is 0{eager}",
        "compilation-config: {encoder_cudagraph_token_budgets: [...]} for the sizes you serve",
        taken=None if pool is None else Taken("CUDA graphs of the encoder", pool),
    )


def check_embeddings(facts: CheckFacts) -> Iterator[Check]:
    """Embeddings from clients fill the encoder cache. For a modality limited to 0 vLLM neither
    checks their number nor profiles them (`MultiModalBudget`, vllm/multimodal/encoder_budget.py,
    `profile_run`, vllm/v1/worker/gpu_model_runner.py of 0.32).
    """
    if not facts.configuration.engine_args.get("enable_mm_embeds"):
        return
    limit = facts.configuration.budget.encoder_cache_size
    memory = facts.options.memory
    cache_bytes = memory.encoder_cache_bytes if memory else None
    unlimited = [m for m, most in facts.configuration.items_per_prompt.items() if not most]
    detail = (
        f"enable_mm_embeds: clients may send embeddings, up to {limit:,} tokens in the encoder "
        f"cache{computed_size(cache_bytes)}; wrong shapes may crash vLLM"
    )
    if unlimited:
        detail += (
            f"; any number of {', '.join(unlimited)}, which is limited to 0 "
            "(MultiModalBudget, vllm/multimodal/encoder_budget.py)"
        )
    taken = None
    if not any(facts.configuration.items_per_prompt.values()):
        detail += "; vLLM profiles none of it (profile_run, vllm/v1/worker/gpu_model_runner.py)"
        if cache_bytes is not None:
            taken = Taken("embeddings that clients send", cache_bytes)
    remedy = "remove enable-mm-embeds unless you trust every client"
    yield Check(ids.EMBEDDINGS, "warn", detail, remedy, taken=taken)


def check_api_server(facts: CheckFacts) -> Iterator[Check]:
    """vLLM subtracts this memory after its profile (`reserve_mm_ipc_gpu_memory`,
    vllm/multimodal/gpu_ipc_memory.py of 0.32, from `determine_available_memory`), so a rehearsal
    includes it among the buffers. Only video decoders on the GPU use it.
    """
    args = facts.configuration.engine_args
    given = args.get(_IPC_MEMORY) or 0
    if not given:
        return
    taken = Taken("of buffers: video decoding by the API server", round(given * GIB))
    detail = (
        f"{_IPC_MEMORY} {given:g}: {given:.2f} GiB less KV cache, reserved for decoding in the API "
        "server (reserve_mm_ipc_gpu_memory, vllm/multimodal/gpu_ipc_memory.py)"
    )
    video = (args.get("media_io_kwargs") or {}).get("video") or {}
    unused = ""
    if not facts.configuration.items_per_prompt.get("video"):
        unused = ", though no video is served, and only video uses it"
    elif constants.GPU_VIDEO_BACKEND not in (video.get("backend"), video.get("video_backend")):
        unused = "; only video backends on the GPU use it, and media-io-kwargs names none"
    if unused:
        remedy = "remove mm-ipc-gpu-memory-gb"
        yield Check(ids.API_SERVER_MEMORY, "warn", detail + unused, remedy, taken=taken)
        return
    more = "; its decoders take more for each API server, which vLLM subtracts too"
    yield Check(ids.API_SERVER_MEMORY, "pass", detail + more, taken=taken)
