"""Options that take memory beside the profile."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from mmcalib.checks.check import Check, CheckId, Figures, Taken, Trap, TrapRule, size
from mmcalib.checks.dialect import line
from mmcalib.derive.limits import ADEQUATE
from mmcalib.releases.constants import (
    ENCODER_GRAPH_LEAST_TOKENS,
    GPU_VIDEO_BACKEND,
    LOGIT_BYTES,
    V2_LOGPROBS_TOKENS,
)
from mmcalib.text import GIB, gib

GRAPHS_RESERVED = CheckId("encoder graphs reserved")


def encoder_graphs(engine_args: Mapping[str, Any], known: Figures) -> Trap | None:
    """A graph is captured for each token budget, in one pool beside what eager code takes
    (`EncoderCudaGraphManager`, vllm/v1/worker/encoder_cudagraph.py of 0.32), and what is larger
    than all of them runs eagerly. The largest graph holds as much as a profile of as many tokens.
    """
    compilation = engine_args.get("compilation_config")
    if not isinstance(compilation, Mapping) or not compilation.get("cudagraph_mm_encoder"):
        return None
    name = GRAPHS_RESERVED
    if engine_args.get("enforce_eager"):
        detail = "enforce_eager: no graph is captured, cudagraph_mm_encoder changes nothing"
        return Trap(Check(name, "warn", detail, "remove one of the two"))
    sizes = _budgets(compilation, known)
    largest, most = sizes[-1], known.budget.encoder_budget_tokens
    pool = None
    if known.encoder_peak_bytes is not None and known.encoder_tokens:
        pool = round(known.encoder_peak_bytes * largest / known.encoder_tokens)
    eager = ""
    if largest < most:
        eager = (
            f"; a step of more than {largest:,} tokens, {most:,} at most, runs without them and "
            "takes what the profile has beside that"
        )
    detail = (
        f"cudagraph_mm_encoder: {len(sizes)} graphs or more, the largest of {largest:,} tokens, "
        f"keep a pool of their own{size(pool)} that a rehearsal does not see; vLLM takes it from "
        "the KV cache (profile_cudagraph_memory, vllm/v1/worker/gpu_model_runner.py) unless "
        f"VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS is 0{eager}"
    )
    remedy = "compilation-config: {encoder_cudagraph_token_budgets: [...]} of what you serve"
    taken = None if pool is None else Taken("CUDA graphs of the encoder", pool)
    return Trap(Check(name, "warn", detail, remedy), taken)


def _budgets(compilation: Mapping[str, Any], known: Figures) -> list[int]:
    """As given, or powers of two up to a whole batch (`_generate_budgets`)."""
    given = compilation.get("encoder_cudagraph_token_budgets")
    if given:
        return sorted(int(tokens) for tokens in given)
    most = min(known.budget.max_num_batched_tokens, known.budget.max_model_len)
    found, tokens = [], ENCODER_GRAPH_LEAST_TOKENS
    while tokens < most:
        found.append(tokens)
        tokens *= 2
    return [*found, most]


ENCODER_GRAPH_TRAPS = (TrapRule(50, encoder_graphs),)


API_SERVER_MEMORY = CheckId("memory of the API server")

SIZE = "mm_ipc_gpu_memory_gb"


def frontend(engine_args: Mapping[str, Any], known: Figures) -> Trap | None:
    """vLLM subtracts it after its profile (`reserve_mm_ipc_gpu_memory`,
    vllm/multimodal/gpu_ipc_memory.py of 0.32, from `determine_available_memory`), so that a
    rehearsal has it too, among the buffers. Only video decoders on the GPU use it.
    """
    given = engine_args.get(SIZE) or 0
    if not given:
        return None
    taken = Taken("of buffers: video decoding by the API server", round(given * GIB))
    detail = (
        f"{SIZE} {given:g}: {given:.2f} GiB less KV cache, reserved for decoding in the API server "
        "(reserve_mm_ipc_gpu_memory, vllm/multimodal/gpu_ipc_memory.py)"
    )
    name = API_SERVER_MEMORY
    if not known.counts.get("video"):
        why = f"{detail}, though no video is served: nothing else uses it"
        return Trap(Check(name, "warn", why, "remove mm-ipc-gpu-memory-gb"), taken)
    video = (engine_args.get("media_io_kwargs") or {}).get("video") or {}
    if GPU_VIDEO_BACKEND not in (video.get("backend"), video.get("video_backend")):
        why = f"{detail}; only video backends on the GPU use it, and media-io-kwargs names none"
        return Trap(Check(name, "warn", why, "remove mm-ipc-gpu-memory-gb"), taken)
    more = "; its decoders take more for each API server, which vLLM subtracts too"
    return Trap(Check(name, "pass", detail + more), taken)


FRONTEND_TRAPS = (TrapRule(70, frontend),)


LOGPROBS_RESERVED = CheckId("prompt_logprobs reserved")

_SOURCE = "_get_prompt_logprobs_dict, vllm/v1/worker/gpu_model_runner.py"
_SOURCE_V2 = "PromptLogprobsWorker, vllm/v1/worker/gpu/sample/prompt_logprob.py"


def prompt_logprobs(engine_args: Mapping[str, Any], known: Figures) -> Trap | None:
    """Who writes `max_logprobs` means to serve them. No value forbids `prompt_logprobs`: 0 lets a
    request ask for 0, which takes the same logits (`_get_prompt_logprobs_dict`,
    vllm/v1/worker/gpu_model_runner.py; `_validate_logprobs`, vllm/sampling_params.py of 0.32).
    """
    most = engine_args.get("max_logprobs")
    if most is None:
        return None
    batch = min(known.budget.max_num_batched_tokens, known.budget.max_model_len)
    tokens = min(batch, V2_LOGPROBS_TOKENS) if known.runner == "V2" else batch
    nbytes = tokens * known.vocab_size * LOGIT_BYTES or None
    detail = (
        f"max_logprobs {most}: a request with prompt_logprobs takes logits of all {tokens:,} "
        f"tokens of a chunk, {known.vocab_size:,} each{size(nbytes)}, which no profile runs "
        f"({_SOURCE_V2 if known.runner == 'V2' else _SOURCE})"
    )
    name, reserved = LOGPROBS_RESERVED, known.activation_peak_bytes
    taken = None if nbytes is None else Taken("logits of prompt_logprobs", nbytes)
    if nbytes is not None and reserved is not None and nbytes <= reserved:
        held = f"{detail}; the activation peak reserves {gib(reserved)} (rehearsed)"
        return Trap(Check(name, "pass", held), taken)
    lower = max(1, tokens // 4)
    remedy = (
        f"{line('max_num_batched_tokens', lower)} takes a quarter of it, where no item is larger; "
        "or a proxy that refuses prompt_logprobs: no option of vLLM does"
    )
    return Trap(Check(name, "warn", detail, remedy), taken)


LOGPROB_TRAPS = (TrapRule(40, prompt_logprobs),)


PRUNED_RESERVED = CheckId("pruned videos reserved")

RATE = "video_pruning_rate"


def pruning(engine_args: Mapping[str, Any], known: Figures) -> Trap | None:
    """A prompt has placeholders for the kept tokens alone (`compute_retained_tokens_count`,
    vllm/multimodal/video_prune/evs.py of 0.32), and these are what fills the encoder budget; models
    prune what they have encoded (`_postprocess_video_embeds_evs`, qwen2_5_vl.py and qwen3_vl.py).
    """
    rate = engine_args.get(RATE) or 0
    if not rate or not known.counts.get("video"):
        return None
    times, limit = 1 / (1 - rate), known.budget.encoder_budget_tokens
    step = known.step_bytes.get("video")
    more = None if step is None else round(step * (times - 1))
    detail = (
        f"{RATE} {rate:g}: a step of {limit:,} kept tokens encodes up to {times:.2f} times as "
        f"many, {int(limit * times):,}, and the profile does not know of it{size(more)}: vLLM "
        "budgets by what is kept (compute_retained_tokens_count, "
        "vllm/multimodal/video_prune/evs.py) and encodes all"
    )
    batch = int(known.budget.max_num_batched_tokens * (1 - rate))
    remedy = (
        f"{line('max_num_batched_tokens', batch)} where no item takes more, fewer "
        "max-num-seqs, or a lower gpu-memory-utilization, which leaves room without reserving it"
    )
    taken = None if more is None else Taken(f"frames that {RATE} drops", more)
    return Trap(Check(PRUNED_RESERVED, "warn", detail, remedy), taken)


PRUNING_TRAPS = (TrapRule(20, pruning),)


LARGEST_ON_ONE_RANK = CheckId("largest item on one rank")

MODE = "mm_encoder_tp_mode"


def tower_parallel(engine_args: Mapping[str, Any], known: Figures) -> Trap | None:
    """Whole items are dealt out to the ranks (`get_load_balance_assignment`,
    vllm/model_executor/models/vision.py of 0.32): the profile's many equal ones lie on all ranks, a
    single one as large as the budget, a video, on one.
    """
    ranks = engine_args.get("tensor_parallel_size") or 1
    if engine_args.get(MODE) != "data" or ranks < 2:
        return None
    budget = known.budget
    profiled = _per_rank(known, ranks)
    largest = max((budget.largest_item(m) for m, n in known.counts.items() if n), default=0)
    detail = (
        f"{MODE} data: the profile of {budget.profiled_items} × {budget.profiled_modality} puts "
        f"{profiled:,} tokens on one of {ranks} ranks, a single item may put {largest:,} there "
        "(get_load_balance_assignment, vllm/model_executor/models/vision.py)"
    )
    name = LARGEST_ON_ONE_RANK
    if not largest or profiled >= ADEQUATE * largest:
        return Trap(Check(name, "pass", detail))
    more = None
    if known.encoder_peak_bytes is not None and profiled:
        more = round(known.encoder_peak_bytes * (largest / profiled - 1))
    taken = None if more is None else Taken("a largest item on one rank", more)
    remedy = "mm-encoder-tp-mode: weights, or a batch that no item is larger than a rank's part of"
    return Trap(Check(name, "warn", f"{detail}{size(more)}: nobody reserves it", remedy), taken)


def _per_rank(known: Figures, ranks: int) -> int:
    """Tokens of the rank that has most of the profile's items."""
    budget = known.budget
    if budget.profiled_modality is None:
        return 0
    dummy = budget.dummies.get(budget.profiled_modality)
    embeds = dummy.embeds if dummy else budget.largest_item(budget.profiled_modality)
    return math.ceil(budget.profiled_items / ranks) * embeds


TOWER_PARALLEL_TRAPS = (TrapRule(30, tower_parallel),)


CAPS_HOLD = CheckId("caps hold for every request")
EMBEDDINGS = CheckId("embeddings of clients")


def trusted_kwargs(served: Mapping[str, Any], known: Figures) -> Trap | None:
    """`served` are all arguments of `vllm serve`. By default a request with `mm_processor_kwargs`
    or `media_io_kwargs` ends with HTTP 400 (`validate_request_mm_kwargs`,
    vllm/entrypoints/generate/base/protocol.py of 0.32).
    """
    if not served.get("trust_request_mm_kwargs"):
        return None
    limit = known.budget.encoder_budget_tokens
    detail = (
        "trust_request_mm_kwargs: a request may bring mm_processor_kwargs and media_io_kwargs of "
        "its own (validate_request_mm_kwargs, vllm/entrypoints/generate/base/protocol.py), so no "
        f"cap of this file holds: an item may take up to the encoder cache, {limit:,} tokens, and "
        "host memory for pixels and frames without bound; what was derived or checked for this "
        "file is void"
    )
    remedy = "remove trust-request-mm-kwargs unless you trust every client"
    return Trap(Check(CAPS_HOLD, "warn", detail, remedy))


def embeddings(engine_args: Mapping[str, Any], known: Figures) -> Trap | None:
    """Items that clients have encoded fill the encoder cache; of a modality limited to 0 their
    number is not checked and nothing is profiled (`MultiModalBudget`,
    vllm/multimodal/encoder_budget.py, `profile_run`, vllm/v1/worker/gpu_model_runner.py of 0.32).
    """
    if not engine_args.get("enable_mm_embeds"):
        return None
    limit, unlimited = (
        known.budget.encoder_cache_size,
        [m for m, n in known.counts.items() if not n],
    )
    held = f"up to {limit:,} tokens in the encoder cache{size(known.encoder_cache_bytes)}"
    detail = f"enable_mm_embeds: clients may send embeddings, {held}; wrong shapes may end vLLM"
    if unlimited:
        detail += (
            f"; of {', '.join(unlimited)}, limited to 0, any number of them "
            "(MultiModalBudget, vllm/multimodal/encoder_budget.py)"
        )
    taken = None
    if not any(known.counts.values()):
        detail += "; nothing of that is profiled (profile_run, vllm/v1/worker/gpu_model_runner.py)"
        if known.encoder_cache_bytes is not None:
            taken = Taken("embeddings that clients send", known.encoder_cache_bytes)
    remedy = "remove enable-mm-embeds unless you trust every client"
    return Trap(Check(EMBEDDINGS, "warn", detail, remedy), taken)


TRUST_TRAPS = (
    TrapRule(10, trusted_kwargs, of_server=True),
    TrapRule(60, embeddings),
)
