"""Options that take memory beside the profile."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import count, takewhile
from typing import Any, Final

from mmcalib.checks.catalogue import (
    API_SERVER_MEMORY,
    EMBEDDINGS,
    GRAPHS_MEMORY,
    LOGPROBS_MEMORY,
    PRUNING_MEMORY,
    RANK_ITEM,
    REQUEST_OPTIONS,
)
from mmcalib.checks.check import Check, Taken, line, size
from mmcalib.checks.facts import CheckFacts, CheckStage, Rules
from mmcalib.derive.limits import ADEQUATE
from mmcalib.domain.memory import Budget
from mmcalib.releases.constants import (
    ENCODER_GRAPH_LEAST_TOKENS,
    GPU_VIDEO_BACKEND,
    LOGIT_BYTES,
    V2_LOGPROBS_TOKENS,
)
from mmcalib.text import GIB, gib

_RATE = "video_pruning_rate"
_TP_MODE = "mm_encoder_tp_mode"
_IPC_MEMORY = "mm_ipc_gpu_memory_gb"


def check_trusted_kwargs(facts: CheckFacts) -> Iterator[Check]:
    """By default a request with `mm_processor_kwargs` or `media_io_kwargs` ends with HTTP 400
    (`validate_request_mm_kwargs`, vllm/entrypoints/generate/base/protocol.py of 0.32).
    """
    if not facts.options.served.get("trust_request_mm_kwargs"):
        return
    limit = facts.configuration.budget.encoder_budget_tokens
    yield Check(
        REQUEST_OPTIONS,
        "warn",
        "trust_request_mm_kwargs: a request may bring mm_processor_kwargs and media_io_kwargs of "
        "its own (validate_request_mm_kwargs, vllm/entrypoints/generate/base/protocol.py), so no "
        f"cap of this file holds: an item may take up to the encoder cache, {limit:,} tokens, and "
        "host memory for pixels and frames without bound; what was derived or checked for this "
        "file is void",
        "remove trust-request-mm-kwargs unless you trust every client",
    )


def check_pruning(facts: CheckFacts) -> Iterator[Check]:
    """A prompt has placeholders for the kept tokens alone (`compute_retained_tokens_count`,
    vllm/multimodal/video_prune/evs.py of 0.32), and these are what fills the encoder budget; models
    prune what they have encoded (`_postprocess_video_embeds_evs`, qwen2_5_vl.py and qwen3_vl.py).
    """
    rate, budget = facts.configuration.engine_args.get(_RATE) or 0, facts.configuration.budget
    if not rate or not facts.configuration.items_per_prompt.get("video"):
        return
    times, limit = 1 / (1 - rate), budget.encoder_budget_tokens
    step = facts.options.step_bytes.get("video")
    more = None if step is None else round(step * (times - 1))
    batch = int(budget.max_num_batched_tokens * (1 - rate))
    yield Check(
        PRUNING_MEMORY,
        "warn",
        f"{_RATE} {rate:g}: a step of {limit:,} kept tokens encodes up to {times:.2f} times as "
        f"many, {int(limit * times):,}, and the profile does not know of it{size(more)}: vLLM "
        "budgets by what is kept (compute_retained_tokens_count, "
        "vllm/multimodal/video_prune/evs.py) and encodes all",
        f"{line('max_num_batched_tokens', batch)} where no item takes more, fewer "
        "max-num-seqs, or a lower gpu-memory-utilization, which leaves room without reserving it",
        taken=None if more is None else Taken(f"frames that {_RATE} drops", more),
    )


def check_tower_parallel(facts: CheckFacts) -> Iterator[Check]:
    """Whole items are dealt out to the ranks (`get_load_balance_assignment`,
    vllm/model_executor/models/vision.py of 0.32): the profile's many equal ones lie on all ranks, a
    single one as large as the budget, a video, on one.
    """
    args, budget = facts.configuration.engine_args, facts.configuration.budget
    ranks = args.get("tensor_parallel_size") or 1
    if args.get(_TP_MODE) != "data" or ranks < 2:
        return
    # Of the rank that has most of the profile's items.
    profiled = math.ceil(budget.profiled_items / ranks) * _profiled_embeds(budget)
    counts = facts.configuration.items_per_prompt
    largest = max((budget.largest_item(m) for m, n in counts.items() if n), default=0)
    detail = (
        f"{_TP_MODE} data: the profile of {budget.profiled_items} × {budget.profiled_modality} "
        f"puts {profiled:,} tokens on one of {ranks} ranks, a single item may put {largest:,} there"
        " (get_load_balance_assignment, vllm/model_executor/models/vision.py)"
    )
    if not largest or profiled >= ADEQUATE * largest:
        yield Check(RANK_ITEM, "pass", detail)
        return
    more, peak = None, facts.options.encoder_peak_bytes
    if peak is not None and profiled:
        more = round(peak * (largest / profiled - 1))
    yield Check(
        RANK_ITEM,
        "warn",
        f"{detail}{size(more)}: nobody reserves it",
        "mm-encoder-tp-mode: weights, or a batch that no item is larger than a rank's part of",
        taken=None if more is None else Taken("a largest item on one rank", more),
    )


def _profiled_embeds(budget: Budget) -> int:
    """Of each item that the profile runs."""
    if budget.profiled_modality is None:
        return 0
    dummy = budget.dummies.get(budget.profiled_modality)
    return dummy.embeds if dummy else budget.largest_item(budget.profiled_modality)


def check_prompt_logprobs(facts: CheckFacts) -> Iterator[Check]:
    """Who writes `max_logprobs` means to serve them. No value forbids `prompt_logprobs`: 0 lets a
    request ask for 0, which takes the same logits (`_get_prompt_logprobs_dict`,
    vllm/v1/worker/gpu_model_runner.py; `_validate_logprobs`, vllm/sampling_params.py of 0.32).
    """
    most = facts.configuration.engine_args.get("max_logprobs")
    if most is None:
        return
    budget, known = facts.configuration.budget, facts.options
    tokens = min(budget.max_num_batched_tokens, budget.max_model_len)
    source = "_get_prompt_logprobs_dict, vllm/v1/worker/gpu_model_runner.py"
    if known.runner == "V2":
        tokens = min(tokens, V2_LOGPROBS_TOKENS)
        source = "PromptLogprobsWorker, vllm/v1/worker/gpu/sample/prompt_logprob.py"
    nbytes = tokens * known.vocab_size * LOGIT_BYTES or None
    detail = (
        f"max_logprobs {most}: a request with prompt_logprobs takes logits of all {tokens:,} "
        f"tokens of a chunk, {known.vocab_size:,} each{size(nbytes)}, which no profile runs "
        f"({source})"
    )
    taken = None if nbytes is None else Taken("logits of prompt_logprobs", nbytes)
    reserved = known.activation_peak_bytes
    if nbytes is not None and reserved is not None and nbytes <= reserved:
        held = f"{detail}; the activation peak reserves {gib(reserved)} (rehearsed)"
        yield Check(LOGPROBS_MEMORY, "pass", held, taken=taken)
        return
    remedy = (
        f"{line('max_num_batched_tokens', max(1, tokens // 4))} takes a quarter of it, where no "
        "item is larger; or a proxy that refuses prompt_logprobs: no option of vLLM does"
    )
    yield Check(LOGPROBS_MEMORY, "warn", detail, remedy, taken=taken)


def check_encoder_graphs(facts: CheckFacts) -> Iterator[Check]:
    """A graph is captured for each token budget, in one pool beside what eager code takes
    (`EncoderCudaGraphManager`, vllm/v1/worker/encoder_cudagraph.py of 0.32), and what is larger
    than all of them runs eagerly. The largest graph holds as much as a profile of as many tokens.
    """
    args, budget = facts.configuration.engine_args, facts.configuration.budget
    compilation = args.get("compilation_config")
    if not isinstance(compilation, Mapping) or not compilation.get("cudagraph_mm_encoder"):
        return
    if args.get("enforce_eager"):
        detail = "enforce_eager: no graph is captured, cudagraph_mm_encoder changes nothing"
        yield Check(GRAPHS_MEMORY, "warn", detail, "remove one of the two")
        return
    sizes, known = _graph_tokens(compilation, budget), facts.options
    largest, most = sizes[-1], budget.encoder_budget_tokens
    pool = None
    if known.encoder_peak_bytes is not None and known.encoder_tokens:
        pool = round(known.encoder_peak_bytes * largest / known.encoder_tokens)
    eager = ""
    if largest < most:
        eager = (
            f"; a step of more than {largest:,} tokens, {most:,} at most, runs without them and "
            "takes what the profile has beside that"
        )
    yield Check(
        GRAPHS_MEMORY,
        "warn",
        f"cudagraph_mm_encoder: {len(sizes)} graphs or more, the largest of {largest:,} tokens, "
        f"keep a pool of their own{size(pool)} that a rehearsal does not see; vLLM takes it from "
        "the KV cache (profile_cudagraph_memory, vllm/v1/worker/gpu_model_runner.py) unless "
        f"VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS is 0{eager}",
        "compilation-config: {encoder_cudagraph_token_budgets: [...]} of what you serve",
        taken=None if pool is None else Taken("CUDA graphs of the encoder", pool),
    )


def _graph_tokens(compilation: Mapping[str, Any], budget: Budget) -> list[int]:
    """As given, or powers of two up to a whole batch (`_generate_budgets`)."""
    if given := compilation.get("encoder_cudagraph_token_budgets"):
        return sorted(int(tokens) for tokens in given)
    most = min(budget.max_num_batched_tokens, budget.max_model_len)
    powers = (ENCODER_GRAPH_LEAST_TOKENS << n for n in count())
    return [*takewhile(lambda tokens: tokens < most, powers), most]


def check_embeddings(facts: CheckFacts) -> Iterator[Check]:
    """Items that clients have encoded fill the encoder cache; of a modality limited to 0 their
    number is not checked and nothing is profiled (`MultiModalBudget`,
    vllm/multimodal/encoder_budget.py, `profile_run`, vllm/v1/worker/gpu_model_runner.py of 0.32).
    """
    if not facts.configuration.engine_args.get("enable_mm_embeds"):
        return
    limit = facts.configuration.budget.encoder_cache_size
    cache_bytes = facts.options.encoder_cache_bytes
    unlimited = [m for m, most in facts.configuration.items_per_prompt.items() if not most]
    held = f"up to {limit:,} tokens in the encoder cache{size(cache_bytes)}"
    detail = f"enable_mm_embeds: clients may send embeddings, {held}; wrong shapes may end vLLM"
    if unlimited:
        detail += (
            f"; of {', '.join(unlimited)}, limited to 0, any number of them "
            "(MultiModalBudget, vllm/multimodal/encoder_budget.py)"
        )
    taken = None
    if not any(facts.configuration.items_per_prompt.values()):
        detail += "; nothing of that is profiled (profile_run, vllm/v1/worker/gpu_model_runner.py)"
        if cache_bytes is not None:
            taken = Taken("embeddings that clients send", cache_bytes)
    remedy = "remove enable-mm-embeds unless you trust every client"
    yield Check(EMBEDDINGS, "warn", detail, remedy, taken=taken)


def check_api_server(facts: CheckFacts) -> Iterator[Check]:
    """vLLM subtracts it after its profile (`reserve_mm_ipc_gpu_memory`,
    vllm/multimodal/gpu_ipc_memory.py of 0.32, from `determine_available_memory`), so that a
    rehearsal has it too, among the buffers. Only video decoders on the GPU use it.
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
        unused = ", though no video is served: nothing else uses it"
    elif GPU_VIDEO_BACKEND not in (video.get("backend"), video.get("video_backend")):
        unused = "; only video backends on the GPU use it, and media-io-kwargs names none"
    if unused:
        remedy = "remove mm-ipc-gpu-memory-gb"
        yield Check(API_SERVER_MEMORY, "warn", detail + unused, remedy, taken=taken)
        return
    more = "; its decoders take more for each API server, which vLLM subtracts too"
    yield Check(API_SERVER_MEMORY, "pass", detail + more, taken=taken)


RULES: Final[Rules] = {
    check_trusted_kwargs: {CheckStage.OPTIONS: 10},
    check_pruning: {CheckStage.OPTIONS: 20},
    check_tower_parallel: {CheckStage.OPTIONS: 30},
    check_prompt_logprobs: {CheckStage.OPTIONS: 40},
    check_encoder_graphs: {CheckStage.OPTIONS: 50},
    check_embeddings: {CheckStage.OPTIONS: 60},
    check_api_server: {CheckStage.OPTIONS: 70},
}
