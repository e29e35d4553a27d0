"""Config classes, the real engine, the engine core in steps (vLLM at the top)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, fields, replace
from typing import Any

from torch.utils._pytree import tree_leaves
from vllm import LLM, SamplingParams
from vllm.engine.arg_utils import EngineArgs
from vllm.multimodal.inputs import MultiModalFeatureSpec
from vllm.usage.usage_lib import UsageContext
from vllm.v1.engine.core import EngineCore
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request

from mmcalib.releases.constants import PROMPTING

# librosa brings it. It answers for its `__dict__` with a function, on which 0.32's search for
# Triton kernels on a CPU ends (`_rebind_kernels`, triton_utils/dispatcher.py).
_UNSEARCHABLE = "llvmlite.binding.ffi"


def start_llm(arguments: dict[str, Any]) -> Any:
    hidden = sys.modules.pop(_UNSEARCHABLE, None)
    try:
        return LLM(**_of_engine(arguments))
    finally:
        if hidden is not None:
            sys.modules[_UNSEARCHABLE] = hidden


def _of_engine(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Without those of the API server."""
    return {name: value for name, value in arguments.items() if name not in PROMPTING}


def greedy(tokens: int) -> Any:
    """Sampling of at most so many tokens, the same at every run."""
    return SamplingParams(max_tokens=tokens, temperature=0.0)


class RequestWatch:
    """Notes what the engine counts: each request's items, and the encoder tokens of every step."""

    def __init__(self, llm: Any) -> None:
        self.item_tokens: dict[str, tuple[int, ...]] = {}
        self.last_added = ""
        # Tokens of the prompt and of its items.
        self.added: tuple[int, tuple[int, ...]] = (0, ())
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
        public_id = getattr(request, "external_req_id", None) or request.request_id
        self.last_added = public_id
        self.item_tokens[public_id] = tuple(p.length for p in positions)
        self.added = len(request.prompt_token_ids or ()), self.item_tokens[public_id]
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


# Making the arguments would look the model up: by their names they are known without.
ARGUMENTS = tuple(field.name for field in fields(EngineArgs))


def served_config(arguments: Mapping[str, Any]) -> Any:
    """The engine config of `vllm serve`."""
    engine_args = EngineArgs(**_of_engine(arguments))
    return engine_args.create_engine_config(UsageContext.OPENAI_API_SERVER)


def offline_config(arguments: Mapping[str, Any]) -> Any:
    """The engine config of `vllm.LLM`, whose defaults differ on a GPU."""
    return EngineArgs(**_of_engine(arguments)).create_engine_config(UsageContext.LLM_CLASS)


def model_config(arguments: Mapping[str, Any]) -> Any:
    return EngineArgs(**_of_engine(arguments)).create_model_config()


@dataclass(slots=True)
class Missed:
    """What a worker was not told yet, of steps that it did not run."""

    finished: set[str] = field(default_factory=set)
    preempted: set[str] = field(default_factory=set)
    freed: list[str] = field(default_factory=list)
    blocks: dict[str, tuple[list[int], ...]] = field(default_factory=dict)

    def take(self, decided: Any) -> None:
        """A step of no new request, and of one token of each, that is left out."""
        self.finished |= decided.finished_req_ids
        self.preempted |= decided.preempted_req_ids or set()
        self.freed += decided.free_encoder_mm_hashes
        for name in (*decided.finished_req_ids, *(decided.preempted_req_ids or ())):
            self.blocks.pop(name, None)
        cached = decided.scheduled_cached_reqs
        for name, new in zip(cached.req_ids, cached.new_block_ids, strict=True):
            if new is not None:
                self.blocks[name] = _joined(self.blocks.get(name), new)

    def told_with(self, decided: Any) -> Any:
        """The step with all that was missed and not told yet; blocks of absent requests wait."""
        for name in (*decided.finished_req_ids, *(decided.preempted_req_ids or ())):
            self.blocks.pop(name, None)
        cached = decided.scheduled_cached_reqs
        blocks = []
        for name, new in zip(cached.req_ids, cached.new_block_ids, strict=True):
            before = self.blocks.pop(name, None)
            anew = before is None or name in cached.resumed_req_ids
            blocks.append(new if anew else _joined(before, new))
        for new_request in decided.scheduled_new_reqs:
            self.blocks.pop(new_request.req_id, None)
        told = replace(
            decided,
            scheduled_cached_reqs=replace(cached, new_block_ids=blocks),
            finished_req_ids=self.finished | decided.finished_req_ids,
            free_encoder_mm_hashes=[*self.freed, *decided.free_encoder_mm_hashes],
            preempted_req_ids=self.preempted | (decided.preempted_req_ids or set()),
        )
        self.finished, self.preempted, self.freed = set(), set(), []
        return told


def _joined(before: Any, new: Any) -> Any:
    if before is None or new is None:
        return before or new
    return tuple([*a, *b] for a, b in zip(before, new, strict=True))


# What a worker's startup profile is run by: the worker, and the method.
RunProfile = Callable[[Any, Callable[[], Any]], Any]
# What a step is run by: the scheduler's output, and what has the worker execute it.
RunStep = Callable[[Any, Callable[[], None]], None]


def stepped_config(engine_args: Mapping[str, Any]) -> Any:
    """The engine config of `vllm serve`, except that a step is over before the next is scheduled:
    with `async_scheduling` a request that ends is scheduled once more before that is known.
    """
    return served_config({**engine_args, "async_scheduling": False, "load_format": "dummy"})


@dataclass(frozen=True, slots=True)
class PlacedItem:
    """One processed item of a request and its placeholders; equal `content` is one item."""

    content: str
    modality: str
    data: Any
    position: Any

    @property
    def embeds(self) -> int:
        """What the encoder makes of it, in embeddings."""
        return int(self.position.get_num_embeds())


class SteppedCore:
    """An engine core whose steps are taken one at a time.

    `run` executes a step or leaves it out, which is sound for steps that only go on with answers;
    the worker then hears later what it missed. Answers are made up, a token a step.
    """

    def __init__(self, config: Any, *, run: RunStep, profile: RunProfile) -> None:
        self.config = config
        self.decided: Any = None
        self.held_up: set[str] = set()
        self.reused = 0
        self._missed = Missed()
        self._added = 0
        self._items: dict[str, Sequence[PlacedItem]] = {}
        self._run = run
        usual = config.model_config.get_diff_sampling_param()
        self._usual = {name: value for name, value in usual.items() if name != "max_tokens"}
        core = self
        # Of 0.11, which starts and is not served from, elsewhere.
        from vllm.v1.executor.uniproc_executor import UniProcExecutor

        class SteppedExecutor(UniProcExecutor):  # type: ignore[misc] # vLLM has no stubs
            def determine_available_memory(self) -> Any:
                return profile(self.driver_worker.worker, super().determine_available_memory)

            def execute_model(self, scheduler_output: Any, non_block: bool = False) -> Any:
                return core._executed(scheduler_output, super().execute_model, self.sample_tokens)

        self.core = EngineCore(config, SteppedExecutor, log_stats=False)
        self._watch()

    @property
    def worker(self) -> Any:
        return self.core.model_executor.driver_worker.worker

    @property
    def busy(self) -> bool:
        """Whether a request has no answer yet, or the worker has not heard that it has."""
        return bool(self.core.scheduler.has_requests())

    @property
    def unfinished(self) -> int:
        """Requests that wait or run."""
        return int(self.core.scheduler.get_num_unfinished_requests())

    @property
    def waiting(self) -> int:
        return len(self.core.scheduler.waiting)

    @property
    def cache_size(self) -> int:
        """The encoder cache, in embeddings."""
        return int(self.core.scheduler.encoder_cache_manager.cache_size)

    @property
    def cache_used(self) -> int:
        free = int(self.core.scheduler.encoder_cache_manager.num_free_slots)
        # An encoder-decoder's frees an item at each step (`EncoderDecoderCacheManager`, 0.32).
        return self.cache_size - min(free, self.cache_size)

    @property
    def kv_blocks(self) -> int:
        """Of the whole pool, without the one that stands for none."""
        return int(self.config.cache_config.num_gpu_blocks) - 1

    @property
    def kv_blocks_used(self) -> int:
        pool = self.core.scheduler.kv_cache_manager.block_pool
        return self.kv_blocks - int(pool.get_num_free_blocks())

    @property
    def kv_tensors(self) -> list[Any]:
        """Of the whole KV cache, views of the same storages among them."""
        leaves: list[Any] = tree_leaves(self.worker.model_runner.kv_caches)
        return leaves

    @property
    def encoding_tokens(self) -> int:
        """Embeddings that the last step makes."""
        encoded = self.decided.scheduled_encoder_inputs if self.decided else {}
        places = ((name, index) for name, every in encoded.items() for index in every)
        return sum(self._items[name][index].embeds for name, index in places)

    def encoder_outputs(self) -> list[Any]:
        """The tensors that the runner's encoder cache holds."""
        held = getattr(self.worker.model_runner, "encoder_cache", None)
        outputs: Mapping[str, Any] = getattr(held, "encoder_outputs", held) or {}
        return list(outputs.values())

    def ask(self, ids: list[int], items: Sequence[PlacedItem], answer_tokens: int) -> str:
        """Queue a request of these tokens and items; returns its name."""
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
        # As a server samples for a request that does not say, but for where it ends.
        sampling = SamplingParams(**self._usual, max_tokens=answer_tokens, ignore_eos=True)
        self.core.add_request(
            Request(name, ids, sampling, None, mm_features=features, block_hasher=hasher)
        )
        return name

    def step(self) -> int:
        """Take one; returns how many requests it finished."""
        self.decided, self.held_up = None, set()
        outputs, executed = self.core.step()
        self.core.post_step(executed)
        every = (outputs or {}).values()
        return sum(output.finished for each in every for output in each.outputs)

    def end(self) -> None:
        self.core.shutdown()

    def _executed(
        self, decided: Any, execute: Callable[[Any], Any], sample: Callable[[Any], Any]
    ) -> Any:
        """What the worker makes of a step, in a form that an engine core may wait for."""
        self.decided = decided
        ran = False

        def work() -> None:
            nonlocal ran
            ran = True
            if execute(self._missed.told_with(decided)) is None:
                sample(None)

        self._run(decided, work)
        if not ran:
            self._missed.take(decided)
        done: Future[Any] = Future()
        done.set_result(self._answers(decided))
        return done

    def _answers(self, decided: Any) -> Any:
        names = list(decided.num_scheduled_tokens)
        requests = self.core.scheduler.requests
        # The scheduler has counted the step's tokens by then.
        through = [requests[n].num_computed_tokens >= requests[n].num_tokens for n in names]
        return ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: index for index, name in enumerate(names)},
            sampled_token_ids=[[0] if one else [] for one in through],
        )

    def _watch(self) -> None:
        """Note which requests wait for the encoder or its cache, and which items are reused."""
        manager = self.core.scheduler.encoder_cache_manager
        allocates, checks = manager.can_allocate, manager.check_and_update_cache

        def can_allocate(request: Any, *args: Any) -> bool:
            found = bool(allocates(request, *args))
            if not found:
                self.held_up.add(request.request_id)
            return found

        def check(request: Any, index: int) -> bool:
            found = bool(checks(request, index))
            self.reused += found
            return found

        manager.can_allocate, manager.check_and_update_cache = can_allocate, check
