"""Checks of options that take memory outside vLLM's profile, caches included."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from mmcalib.checks import catalogue as ids
from mmcalib.checks.check import Check, Taken, computed_size, yaml_line
from mmcalib.checks.facts import CheckFacts
from mmcalib.limits.processor_cache import CappedCache, SizedCache, UnsizedCache, round_up_gib
from mmcalib.limits.values import CACHE, MIN_RESERVE_RATIO
from mmcalib.releases import constants
from mmcalib.releases.constants import PROCESSOR_CACHE_GIB, PROCESSOR_CACHES, SHM_OBJECT_MIB
from mmcalib.text import GIB, MIB, gib, number, plural, share

_RATE = "video_pruning_rate"
_TP_MODE = "mm_encoder_tp_mode"
_IPC_MEMORY = "mm_ipc_gpu_memory_gb"
_OBJECT_SIZE = "mm_shm_cache_max_object_size_mb"


def check_trusted_kwargs(facts: CheckFacts) -> Iterator[Check]:
    """By default vLLM answers HTTP 400 to a request with `mm_processor_kwargs` or `media_io_kwargs`
    (`validate_request_mm_kwargs`, vllm/entrypoints/generate/base/protocol.py of 0.32).
    """
    if not facts.options.served.get("trust_request_mm_kwargs"):
        return
    limit = facts.configuration.budget.encoder_budget_tokens
    detail = "trust_request_mm_kwargs: requests may set mm_processor_kwargs and media_io_kwargs "
    detail += "(validate_request_mm_kwargs, vllm/entrypoints/generate/base/protocol.py), so no cap "
    detail += f"of this file holds. An item may take the whole encoder cache, {limit:,} tokens, "
    detail += "and any amount of host memory"
    remedy = "remove trust-request-mm-kwargs unless you trust every client"
    yield Check(ids.REQUEST_OPTIONS, "warn", detail, remedy)


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
    detail = f"{_RATE} {rate:g}: a step of {limit:,} kept tokens encodes up to {times:.2f} times "
    detail += f"as many, {int(limit * times):,}, and the profile omits them{computed_size(more)}: "
    detail += "vLLM budgets kept tokens (compute_retained_tokens_count, "
    detail += "vllm/multimodal/video_prune/evs.py) and encodes all"
    remedy = f"{yaml_line('max_num_batched_tokens', batch)} if no item takes more, fewer "
    remedy += "max-num-seqs, or a lower gpu-memory-utilization"
    taken = None if more is None else Taken(f"frames that {_RATE} drops", more)
    yield Check(ids.PRUNING_MEMORY, "warn", detail, remedy, taken=taken)


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
    detail = f"{_TP_MODE} data: the profile of {budget.profiled_items} × "
    detail += f"{budget.profiled_modality} puts {profiled:,} tokens on each of {ranks} ranks, one "
    detail += f"item may put {largest:,} on one (get_load_balance_assignment, "
    detail += "vllm/model_executor/models/vision.py)"
    if not largest or profiled >= MIN_RESERVE_RATIO * largest:
        yield Check(ids.RANK_ITEM, "pass", detail)
        return
    more, peak = None, facts.options.encoder_peak_bytes
    if peak is not None and profiled:
        more = round(peak * (largest / profiled - 1))
    detail = f"{detail}{computed_size(more)}, which is not reserved"
    remedy = "mm-encoder-tp-mode: weights, or a batch whose part on one rank holds any item"
    taken = None if more is None else Taken("a largest item on one rank", more)
    yield Check(ids.RANK_ITEM, "warn", detail, remedy, taken=taken)


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
    detail = f"max_logprobs {most}: a request with prompt_logprobs takes logits of all {tokens:,} "
    detail += f"tokens of a chunk, {vocab_size:,} each{computed_size(nbytes)}, outside the profile "
    detail += f"({source})"
    taken = None if nbytes is None else Taken("logits of prompt_logprobs", nbytes)
    if nbytes and memory is not None and nbytes <= memory.activation_peak_bytes:
        detail += f"; the activation peak reserves {gib(memory.activation_peak_bytes)} (rehearsed)"
        yield Check(ids.LOGPROBS_MEMORY, "pass", detail, taken=taken)
        return
    remedy = f"{yaml_line('max_num_batched_tokens', max(1, tokens // 4))} takes a quarter of it, "
    remedy += "if no item is larger; or a proxy that rejects prompt_logprobs, as vLLM has no "
    remedy += "option for that"
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
        eager = f"; a larger step, of up to {most:,} tokens, runs eagerly and takes the profiled "
        eager += "memory too"
    detail = f"cudagraph_mm_encoder: its graphs, the largest of {largest:,} tokens, have their own "
    detail += f"pool{computed_size(pool)}, which the rehearsal leaves out. vLLM takes it from the "
    detail += "KV cache (profile_cudagraph_memory, vllm/v1/worker/gpu_model_runner.py) unless "
    detail += f"VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS is 0{eager}"
    remedy = "compilation-config: {encoder_cudagraph_token_budgets: [...]} for the sizes you serve"
    taken = None if pool is None else Taken("CUDA graphs of the encoder", pool)
    yield Check(ids.GRAPHS_MEMORY, "warn", detail, remedy, taken=taken)


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
    detail = f"enable_mm_embeds: clients may send embeddings, up to {limit:,} tokens in the "
    detail += f"encoder cache{computed_size(cache_bytes)}; wrong shapes may crash vLLM"
    if unlimited:
        detail += f"; any number of {', '.join(unlimited)}, which is limited to 0 "
        detail += "(MultiModalBudget, vllm/multimodal/encoder_budget.py)"
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
    detail = f"{_IPC_MEMORY} {given:g}: {given:.2f} GiB less KV cache, reserved for decoding in "
    detail += "the API server (reserve_mm_ipc_gpu_memory, vllm/multimodal/gpu_ipc_memory.py)"
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


def check_processor_cache(facts: CheckFacts) -> Iterator[Check]:
    """Report the size of the processor cache, or why it has none of its own."""
    name, cache = ids.PROCESSOR_CACHE, facts.decision.cache
    own = facts.decision.engine_args.get(CACHE)
    if isinstance(cache, UnsizedCache):
        reason = cache.reason if own is None else f"not sized: no requests; your {own:g} GiB apply"
        yield Check(name, "skip", reason)
    elif isinstance(cache, CappedCache):
        least = f"--ram-budget {PROCESSOR_CACHES * round_up_gib(cache.floor.nbytes):g}GiB or more"
        size_gb = cache.mm_processor_cache_gb
        remedy = "" if size_gb else f"{least}, if the host has it"
        yield Check(name, "pass" if size_gb else "warn", cache_reason(cache), remedy)
    else:
        size, allowed_bytes = cache.size, facts.policy.ram_budget_bytes
        most = f"at most {gib(size.total_bytes)} of RAM in both processes of a server"
        default = gib(PROCESSOR_CACHES * PROCESSOR_CACHE_GIB * GIB)
        detail = f"{most}, by default {default}: {cache_reason(cache)}"
        more = f"--ram-budget {PROCESSOR_CACHES * size.wanted_gib:g}GiB, if the host has it"
        if size.is_limited and allowed_bytes is not None:
            yield Check(name, "warn", f"{gib(allowed_bytes)} are allowed, {detail}", more)
        else:
            yield Check(name, "pass", f"{detail}: {more}" if size.is_limited else detail)


def cache_reason(cache: SizedCache | CappedCache) -> str:
    """Why the processor cache has this size."""
    return _capped_reason(cache) if isinstance(cache, CappedCache) else _sized_reason(cache)


def _capped_reason(cache: CappedCache) -> str:
    most = f"the largest allowed request needs {cache.floor}"
    if cache.mm_processor_cache_gb:
        budgeted = cache.allowed_gib < PROCESSOR_CACHE_GIB
        at_most = "the RAM budget allows" if budgeted else "one request needs"
        return f"as large as {at_most}: without request order the best size is unknown; {most}"
    allows = f"vLLM's default is {PROCESSOR_CACHE_GIB} GiB"
    if cache.budgeted:
        allows = f"the RAM budget allows {cache.allowed_gib:g} GiB per process"
    return f"off: {most}; {allows}, and vLLM fails requests that exceed its cache"


def _sized_reason(cache: SizedCache) -> str:
    curve, size, floor = cache.curve, cache.size, cache.floor
    first = "" if cache.complete else "the first "
    items = f"{first}{number(curve.accesses)} items in {plural(cache.requests, 'request')}"
    if not curve.most_hits:
        return f"none of {items} repeats in a later one: a cache would never hit"
    default = f"vLLM's {PROCESSOR_CACHE_GIB} GiB {share(curve.rate_at(PROCESSOR_CACHE_GIB * GIB))}"
    if size.floor_bytes > PROCESSOR_CACHE_GIB * GIB:
        default = f"vLLM's {PROCESSOR_CACHE_GIB} GiB cannot hold the largest allowed request"
    most = f"an unlimited cache hits {share(curve.rate_at(math.inf))}, {default}"
    why = f"expected hit rate {share(size.hit_rate)}; {items}, {most}"
    if not size.mm_processor_cache_gb:
        # Items do repeat, but no allowed size is safe or hits.
        unsafe = f"but the largest allowed request needs {floor}"
        need = unsafe if size.floor_bytes > size.allowed_gib * GIB else "too little to hit"
        why = f"off: {size.allowed_gib:g} GiB per process are allowed, {need}; of {items} {most}"
    if size.floor_limited:
        why += f"; at least what the largest allowed request needs, {floor}"
    if size.is_limited:
        why += f"; {share(size.wanted_hit_rate)} would take {size.wanted_gib:g} GiB per process"
    return why


def check_cache_floor(facts: CheckFacts) -> Iterator[Check]:
    """Check that the processor cache holds one request, which could evict its own items. `shm`
    keeps items in use (`ShmObjectStoreSenderCache`, vllm/multimodal/cache/shm.py of 0.32), but
    data-parallel engines of one server do not have it (`_get_cache_type`, factories.py).
    """
    args, floor = facts.configuration.engine_args, facts.tries.cache_floor
    given = args.get(CACHE)
    size = PROCESSOR_CACHE_GIB if given is None else given
    if floor is None or not size or not floor.nbytes:
        return
    alone = (args.get("data_parallel_size") or 1) == 1
    if alone and args.get("mm_processor_cache_type") == "shm":
        yield from _shared_items_checks(facts)
        return
    given_size = f"{CACHE} {size:g}" if given is not None else f"vLLM's default of {size} GiB"
    most = f"{floor} (computed)"
    if floor.nbytes <= size * GIB:
        yield Check(ids.REQUEST_CACHE, "pass", f"{given_size}; one request may bring {most}")
        return
    detail = f"{given_size}, but one request may bring {most}. If its new items evict one that it "
    detail += "found in the cache, vLLM answers HTTP 500, `Expected a cached item` "
    detail += "(_merge_mm_kwargs, vllm/multimodal/processing/processor.py)"
    remedy = f"{yaml_line(CACHE, 0)}, or {yaml_line(CACHE, round_up_gib(floor.nbytes))} if the "
    remedy += "host has twice that, or smaller limits"
    yield Check(ids.REQUEST_CACHE, "warn", detail, remedy)


def _shared_items_checks(facts: CheckFacts) -> Iterator[Check]:
    """`SingleWriterShmObjectStorage.put` stores no larger item (vllm/distributed, 0.33)."""
    own = facts.configuration.engine_args.get(_OBJECT_SIZE)
    cap = SHM_OBJECT_MIB if own is None else own
    for modality, nbytes in facts.tries.largest_bytes.items():
        if nbytes > cap * MIB:
            detail = f"{_OBJECT_SIZE} {cap}, but one {modality} may take {nbytes / MIB:,.0f} "
            detail += "MiB (computed): vLLM processes it anew in every request"
            remedy = yaml_line(_OBJECT_SIZE, nbytes // MIB + 2)
            yield Check(ids.SHARED_CACHE.of(modality), "warn", detail, remedy)
