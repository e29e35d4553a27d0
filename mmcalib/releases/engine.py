"""vLLM's engine configs, its real engine, and an engine core that runs step by step."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, fields, replace
from typing import Any

from torch.utils._pytree import tree_leaves
from transformers import PretrainedConfig
from vllm import LLM, SamplingParams
from vllm.engine.arg_utils import EngineArgs
from vllm.multimodal.inputs import MultiModalFeatureSpec
from vllm.usage.usage_lib import UsageContext
from vllm.v1.engine.core import EngineCore
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request

from mmcalib.releases.constants import PROMPT_ARGUMENTS

# librosa imports it. Its `__dict__` is a function, which crashes 0.32's search for Triton kernels
# on a CPU (`_rebind_kernels`, triton_utils/dispatcher.py).
_UNSEARCHABLE = "llvmlite.binding.ffi"

# transformers writes each config into log lines and errors that nobody sees (`from_dict`, 5.19):
# nine tenths of the time to open Qwen2.5-Omni with other options.
PretrainedConfig.__repr__ = lambda config: type(config).__name__


def start_llm(arguments: dict[str, Any]) -> Any:
    hidden = sys.modules.pop(_UNSEARCHABLE, None)
    try:
        return LLM(**_engine_only(arguments))
    finally:
        if hidden is not None:
            sys.modules[_UNSEARCHABLE] = hidden


def _engine_only(arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in arguments.items() if name not in PROMPT_ARGUMENTS}


def one_token_sampling() -> Any:
    """One token proves that the engine admitted, encoded and prefilled a prompt."""
    return SamplingParams(max_tokens=1, temperature=0.0)


class RequestWatch:
    """Records the engine's counts: tokens of each request's items, encoder tokens per step."""

    def __init__(self, llm: Any) -> None:
        self.item_tokens: dict[str, tuple[int, ...]] = {}
        self.last_added = ""
        self.largest_encoder_step_tokens = 0
        self._embeds: dict[str, list[int]] = {}
        self._client = llm.llm_engine.engine_core
        self._scheduler = self._client.engine_core.scheduler
        self._add, self._schedule = self._client.add_request, self._scheduler.schedule

    def __enter__(self) -> RequestWatch:
        self._client.add_request = self._noting_items
        self._scheduler.schedule = self._noting_steps
        return self

    def __exit__(self, *_: object) -> None:
        del self._client.add_request, self._scheduler.schedule

    def _noting_items(self, request: Any) -> Any:
        positions = [feature.mm_position for feature in request.mm_features or ()]
        self.last_added = request.external_req_id
        self.item_tokens[self.last_added] = tuple(p.length for p in positions)
        self._embeds[request.request_id] = [p.get_num_embeds() for p in positions]
        return self._add(request)

    def _noting_steps(self, *args: Any, **kwargs: Any) -> Any:
        step = self._schedule(*args, **kwargs)
        tokens = sum(
            self._embeds[request][index]
            for request, indices in step.scheduled_encoder_inputs.items()
            for index in indices
        )
        self.largest_encoder_step_tokens = max(self.largest_encoder_step_tokens, tokens)
        return step


# Field names do not need an EngineArgs object, which would look the model up.
ARGUMENTS = tuple(field.name for field in fields(EngineArgs))


def serve_config(arguments: Mapping[str, Any]) -> Any:
    engine_args = EngineArgs(**_engine_only(arguments))
    return engine_args.create_engine_config(UsageContext.OPENAI_API_SERVER)


def quantization_methods() -> list[str]:
    from vllm.model_executor.layers.quantization import QUANTIZATION_METHODS

    return list(QUANTIZATION_METHODS)


def offline_config(arguments: Mapping[str, Any]) -> Any:
    """Return the engine config of `vllm.LLM`, whose defaults differ on a GPU."""
    return EngineArgs(**_engine_only(arguments)).create_engine_config(UsageContext.LLM_CLASS)


def model_config(arguments: Mapping[str, Any]) -> Any:
    return EngineArgs(**_engine_only(arguments)).create_model_config()


@dataclass(slots=True)
class SkippedUpdates:
    """Scheduler updates from skipped steps that the worker has not received yet."""

    finished: set[str] = field(default_factory=set)
    preempted: set[str] = field(default_factory=set)
    freed: list[str] = field(default_factory=list)
    blocks: dict[str, tuple[list[int], ...]] = field(default_factory=dict)

    def record(self, scheduled: Any) -> None:
        """Record a skipped step. It has no new request and one token of each running request."""
        self.finished |= scheduled.finished_req_ids
        self.preempted |= scheduled.preempted_req_ids or set()
        self.freed += scheduled.free_encoder_mm_hashes
        for name in (*scheduled.finished_req_ids, *(scheduled.preempted_req_ids or ())):
            self.blocks.pop(name, None)
        cached = scheduled.scheduled_cached_reqs
        for name, new in zip(cached.req_ids, cached.new_block_ids, strict=True):
            if new is not None:
                self.blocks[name] = _join_blocks(self.blocks.get(name), new)

    def add_to(self, scheduled: Any) -> Any:
        """Add all missed updates to a step; blocks of requests not in it stay recorded."""
        for name in (*scheduled.finished_req_ids, *(scheduled.preempted_req_ids or ())):
            self.blocks.pop(name, None)
        cached = scheduled.scheduled_cached_reqs
        blocks = []
        for name, new in zip(cached.req_ids, cached.new_block_ids, strict=True):
            before = self.blocks.pop(name, None)
            is_fresh = before is None or name in cached.resumed_req_ids
            blocks.append(new if is_fresh else _join_blocks(before, new))
        for new_request in scheduled.scheduled_new_reqs:
            self.blocks.pop(new_request.req_id, None)
        complete = replace(
            scheduled,
            scheduled_cached_reqs=replace(cached, new_block_ids=blocks),
            finished_req_ids=self.finished | scheduled.finished_req_ids,
            free_encoder_mm_hashes=[*self.freed, *scheduled.free_encoder_mm_hashes],
            preempted_req_ids=self.preempted | (scheduled.preempted_req_ids or set()),
        )
        self.finished, self.preempted, self.freed = set(), set(), []
        return complete


def _join_blocks(before: Any, new: Any) -> Any:
    if before is None or new is None:
        return before or new
    return tuple([*a, *b] for a, b in zip(before, new, strict=True))


# Runs a worker's startup profile, given the worker and its method.
RunProfile = Callable[[Any, Callable[[], Any]], Any]
# Runs or skips a step, given the scheduler's output and a function that executes it.
RunStep = Callable[[Any, Callable[[], None]], None]


@dataclass(frozen=True, slots=True)
class PlacedItem:
    """One processed item and its placeholders; equal `content` means the same item."""

    content: str
    modality: str
    data: Any
    position: Any

    @property
    def embeds(self) -> int:
        return int(self.position.get_num_embeds())


class SteppedCore:
    """An engine core that runs one step at a time.

    `run` executes or skips a step. Only steps that continue answers may be skipped; the worker gets
    their updates with the next step it runs. Answers are placeholders, one token per step.
    """

    def __init__(self, config: Any, *, run: RunStep, profile: RunProfile) -> None:
        self.config = config
        self.last_output: Any = None
        self.blocked_requests: set[str] = set()
        self.reused = set[tuple[str, int]]()
        self._missed = SkippedUpdates()
        self._added = 0
        self._items: dict[str, Sequence[PlacedItem]] = {}
        self._run = run
        sampling = config.model_config.get_diff_sampling_param()
        self._sampling = {name: value for name, value in sampling.items() if name != "max_tokens"}
        core = self
        # Release 0.11 has it elsewhere; mmcalib starts that release but does not serve from it.
        from vllm.v1.executor.uniproc_executor import UniProcExecutor

        class SteppedExecutor(UniProcExecutor):  # type: ignore[misc] # vLLM has no stubs
            def determine_available_memory(self) -> Any:
                return profile(self.driver_worker.worker, super().determine_available_memory)

            def execute_model(self, scheduler_output: Any, non_block: bool = False) -> Any:
                return core._run_step(scheduler_output, super().execute_model, self.sample_tokens)

        self.core = EngineCore(config, SteppedExecutor, log_stats=False)
        self._watch_encoder_cache()

    @property
    def worker(self) -> Any:
        return self.core.model_executor.driver_worker.worker

    @property
    def is_busy(self) -> bool:
        """True while a request has no answer, or the worker has not received its end."""
        return bool(self.core.scheduler.has_requests())

    @property
    def unfinished(self) -> int:
        return int(self.core.scheduler.get_num_unfinished_requests())

    @property
    def waiting(self) -> int:
        return len(self.core.scheduler.waiting)

    @property
    def cache_size(self) -> int:
        """Size of the encoder cache in embeddings."""
        return int(self.core.scheduler.encoder_cache_manager.cache_size)

    @property
    def cache_used(self) -> int:
        free = int(self.core.scheduler.encoder_cache_manager.num_free_slots)
        # An encoder-decoder frees an item at each step (`EncoderDecoderCacheManager`, 0.32).
        return self.cache_size - min(free, self.cache_size)

    @property
    def kv_blocks(self) -> int:
        """Blocks of the pool without vLLM's null block."""
        return int(self.config.cache_config.num_gpu_blocks) - 1

    @property
    def kv_blocks_used(self) -> int:
        pool = self.core.scheduler.kv_cache_manager.block_pool
        return self.kv_blocks - int(pool.get_num_free_blocks())

    @property
    def kv_tensors(self) -> list[Any]:
        """All tensors of the KV cache; several may be views of one storage."""
        return list(tree_leaves(self.worker.model_runner.kv_caches))

    @property
    def encoding_tokens(self) -> int:
        encoded = self.last_output.scheduled_encoder_inputs.items()
        places = ((name, index) for name, indices in encoded for index in indices)
        return sum(self._items[name][index].embeds for name, index in places)

    def encoder_outputs(self) -> list[Any]:
        cache = getattr(self.worker.model_runner, "encoder_cache", None)
        outputs: Mapping[str, Any] = getattr(cache, "encoder_outputs", cache) or {}
        return list(outputs.values())

    def add_request(self, ids: list[int], items: Sequence[PlacedItem], answer_tokens: int) -> str:
        """Queue a request with these tokens and items, and return its id."""
        self._added += 1
        name = str(self._added)
        features = [
            MultiModalFeatureSpec(
                data=item.data,
                modality=item.modality,
                identifier=item.content,
                mm_hash=item.content,
                mm_position=item.position,
            )
            for item in items
        ]
        self._items[name] = items
        hasher = self.core.request_block_hasher
        # The server's default sampling, except for the length of the answer.
        sampling = SamplingParams(**self._sampling, max_tokens=answer_tokens, ignore_eos=True)
        self.core.add_request(
            Request(name, ids, sampling, None, mm_features=features, block_hasher=hasher)
        )
        return name

    def step(self) -> int:
        """Run one step, and return the number of requests that it finished."""
        self.blocked_requests = set()
        outputs, has_executed = self.core.step()
        self.core.post_step(has_executed)
        clients = (outputs or {}).values()
        return sum(output.finished for client in clients for output in client.outputs)

    def drop_first(self) -> str:
        """Abort the request that waits longest, and return its id."""
        name = str(self.core.scheduler.waiting.peek_request().request_id)
        self.core.abort_requests([name])
        return name

    def _run_step(
        self, scheduled: Any, execute: Callable[[Any], Any], sample: Callable[[Any], Any]
    ) -> Any:
        """Run or skip a step, and return its output as a finished future."""
        self.last_output = scheduled
        ran = False

        def work() -> None:
            nonlocal ran
            ran = True
            if execute(self._missed.add_to(scheduled)) is None:
                sample(None)

        self._run(scheduled, work)
        if not ran:
            self._missed.record(scheduled)
        result: Future[Any] = Future()
        result.set_result(self._make_output(scheduled))
        return result

    def _make_output(self, scheduled: Any) -> Any:
        names = list(scheduled.num_scheduled_tokens)
        requests = self.core.scheduler.requests
        # The scheduler has already counted the step's tokens.
        is_past_prompt = [requests[n].num_computed_tokens >= requests[n].num_tokens for n in names]
        return ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: index for index, name in enumerate(names)},
            sampled_token_ids=[[0] if past else [] for past in is_past_prompt],
        )

    def _watch_encoder_cache(self) -> None:
        """Record the requests that wait for the encoder or its cache, and the reused items."""
        manager = self.core.scheduler.encoder_cache_manager
        own_allocate, own_check = manager.can_allocate, manager.check_and_update_cache

        def can_allocate(request: Any, *args: Any) -> bool:
            fits = bool(own_allocate(request, *args))
            if not fits:
                self.blocked_requests.add(request.request_id)
            return fits

        def check(request: Any, index: int) -> bool:
            is_cached = bool(own_check(request, index))
            # A prompt of several steps also asks for an item that it has begun.
            start = request.mm_features[index].mm_position.offset
            if is_cached and start >= request.num_computed_tokens:
                self.reused.add((request.request_id, index))
            return is_cached

        manager.can_allocate, manager.check_and_update_cache = can_allocate, check
