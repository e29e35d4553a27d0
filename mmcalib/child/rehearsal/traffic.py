"""Serve requests with vLLM's engine core on the imaginary GPU, and record each step."""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections import Counter, deque
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, Final

from mmcalib.child.failures import refusal_reason
from mmcalib.child.processor import Processor, load
from mmcalib.child.rehearsal.startup import ImaginaryMachine, use_gpu
from mmcalib.child.rehearsal.steps import StepLedger
from mmcalib.child.tensors import storage_sizes
from mmcalib.domain.knobs import Setting
from mmcalib.domain.shapes import Shape
from mmcalib.domain.traffic import Arrivals, HighestStep, Traffic, TrafficRequest, TrafficStep
from mmcalib.engine.messages import Blank, ServeTraffic
from mmcalib.releases import models
from mmcalib.releases.engine import PlacedItem, SteppedCore, serve_config
from mmcalib.releases.processors import create_processor, process_item

# Token ids for synthetic text; tokenizers use lower ids for special tokens.
_FIRST_WORD: Final = 300
_WORDS: Final = 700
# This many words make every text unique.
_UNIQUE_WORDS: Final = 3


class Prompts:
    """Builds prompts for the model of an engine config; it processes each shape once."""

    def __init__(self, config: Any) -> None:
        self._processed: dict[Shape, tuple[list[int], Any, Any]] = {}
        self._numbers = itertools.count()
        model = config.model_config
        loading = Setting(media_io_kwargs=model.multimodal_config.media_io_kwargs)
        self._under = Processor(model, create_processor(model), loading)

    def make(self, request: TrafficRequest) -> tuple[list[int], list[PlacedItem]]:
        """Return a request's tokens and placed items. Raises vLLM's exception for a refused one."""
        for modality, count in Counter(item.shape.modality for item in request.items).items():
            self._under.info.validate_num_items(modality, count)
        outside = self._under.config.is_encoder_decoder
        prompt = request.prompt or (self._unique_text(request.text_tokens),)
        remaining, items = list(request.items), list[PlacedItem]()
        ids = list[int]()
        # Items without a place in the prompt follow it.
        for part in (*prompt, *(item.shape.modality for item in remaining)):
            if not isinstance(part, str):
                ids += part
                continue
            item = next((other for other in remaining if other.shape.modality == part), None)
            if item is None:
                continue
            remaining.remove(item)
            placeholders, data, position = self._process(item.shape)
            position = dataclasses.replace(position, offset=0 if outside else len(ids))
            items.append(PlacedItem(item.content, item.shape.modality, data, position))
            if not outside:
                ids += placeholders
        return ids, items

    def _unique_text(self, tokens: int) -> tuple[int, ...]:
        number = next(self._numbers)
        words = [number // _WORDS**place % _WORDS for place in range(_UNIQUE_WORDS)]
        words += itertools.repeat(0, max(0, tokens - _UNIQUE_WORDS))
        return tuple(_FIRST_WORD + word for word in words[: max(1, tokens)])

    def _process(self, shape: Shape) -> tuple[list[int], Any, Any]:
        if shape not in self._processed:
            media, _ = load(Blank(shape), self._under)
            modality = shape.modality
            output = process_item(self._under.processor, modality, media)
            place = output["mm_placeholders"][modality][0]
            ids = list(output["prompt_token_ids"])[place.offset : place.offset + place.length]
            self._processed[shape] = ids, output["mm_kwargs"][modality][0], place
        return self._processed[shape]


Say = Callable[[str], None]
_EVERY_STEPS = 50


def serve(machine: ImaginaryMachine, request: ServeTraffic, say: Say) -> Traffic:
    """Serve the requests in order until all have answers. Raises vLLM's exceptions."""
    with use_gpu(machine), closing(StepLedger(machine)) as books:
        return serve_by(books, request, say)


def serve_by(books: StepLedger, request: ServeTraffic, say: Say) -> Traffic:
    """Serve on the device in use, whose memory `books` records."""
    # Async scheduling would reschedule finished requests.
    fixed = {"async_scheduling": False, "load_format": "dummy"}
    config = serve_config({**request.engine_args, **fixed})
    models.disable_compilation(config)
    models.disable_warmup(config)
    core = SteppedCore(config, run=books.run, profile=books.profile)
    books.on_started(core)
    prompts = Prompts(config)
    started = time.perf_counter()
    loop = _ServingLoop(core, books, prompts, deque(request.requests), request.arrivals)
    while loop.step():
        if len(loop.steps) % _EVERY_STEPS == 0:
            say(f"{loop.finished:,} of {len(request.requests):,} requests served")
    return Traffic(
        steps=tuple(loop.steps),
        highest=loop.highest,
        refused=tuple(loop.refused),
        kv_blocks=core.kv_blocks,
        cache_tokens=core.cache_size,
        reused_items=len(core.reused),
        cached_tokens=loop.cached_tokens,
        reserved_bytes=books.reserved_bytes,
        seconds=time.perf_counter() - started,
    )


@dataclass(slots=True)
class _ServingLoop:
    """The state of serving; `coming` requests have not arrived yet, `arrived` counts the others."""

    core: SteppedCore
    books: StepLedger
    prompts: Prompts
    coming: deque[TrafficRequest]
    arrivals: Arrivals
    steps: list[TrafficStep] = field(default_factory=list)
    refused: list[tuple[str, str]] = field(default_factory=list)
    highest: HighestStep | None = None
    arrived: int = 0
    finished: int = 0
    cached_tokens: int = 0
    now_s: float = 0.0
    _peak_bytes: int = 0
    _origins: dict[str, str] = field(default_factory=dict)

    def step(self) -> bool:
        """Queue the requests that arrive now, and run a step. Return False when all is served."""
        if self.coming and self.arrivals.needs_clock and not self.core.is_busy:
            # An idle engine waits for the next request without a step.
            self.now_s = max(self.now_s, self._due_s(self.coming[0]))
        while self.coming and self._has_arrived(self.coming[0]):
            self._queue(self.coming.popleft())
            self.arrived += 1
        if not self.core.is_busy:
            return bool(self.coming)
        finished = self.core.step()
        self.finished += finished
        self.now_s += self.arrivals.step_s
        step = self._read_step(finished)
        if not (step.scheduled or self.core.is_busy):
            # The engine only returned its last answers.
            return bool(self.coming)
        was_idle = self.steps and not self.steps[-1].scheduled
        if was_idle and self.core.waiting and not step.scheduled:
            why = "vLLM's scheduler never starts it, and no request behind it"
            self.refused.append((self._origins[self.core.drop_first()], why))
        if step.peak_bytes > self._peak_bytes:
            self._peak_bytes = step.peak_bytes
            self.highest = self._read_highest(step)
        self.steps.append(step)
        return True

    def _has_arrived(self, request: TrafficRequest) -> bool:
        arrivals = self.arrivals
        if arrivals.concurrency is not None:
            return self.core.unfinished < arrivals.concurrency
        return not arrivals.needs_clock or self._due_s(request) <= self.now_s

    def _due_s(self, request: TrafficRequest) -> float:
        rate = self.arrivals.rate
        return request.sent_s if rate is None else self.arrived / rate

    def _queue(self, request: TrafficRequest) -> None:
        try:
            ids, items = self.prompts.make(request)
            # As `InputProcessor` refuses them (vllm/v1/engine/input_processor.py, 0.32).
            room = self.core.config.model_config.max_model_len - len(ids)
            if room <= 0:
                raise ValueError(f"{len(ids):,} tokens leave no room for an answer")
            largest = max((item.embeds for item in items), default=0)
            if largest > self.core.cache_size:
                why = f"an item has {largest:,} tokens, more than the encoder cache"
                raise ValueError(f"{why} ({self.core.cache_size:,})")
        except Exception as error:  # noqa: BLE001 - a server refuses such a request too
            self.refused.append((request.origin, refusal_reason(error)))
            return
        name = self.core.add_request(ids, items, min(max(1, request.answer_tokens), room))
        self._origins[name] = request.origin

    def _read_step(self, finished: int) -> TrafficStep:
        core, output = self.core, self.core.last_output
        outputs = core.encoder_outputs()
        new = output.scheduled_new_reqs
        self.cached_tokens += sum(request.num_computed_tokens for request in new)
        return TrafficStep(
            new=len(new),
            scheduled=len(output.num_scheduled_tokens),
            waiting=core.waiting,
            preempted=len(output.preempted_req_ids or ()),
            held_up=len(core.blocked_requests),
            tokens=output.total_num_scheduled_tokens,
            encoded=sum(map(len, output.scheduled_encoder_inputs.values())),
            encoder_tokens=core.encoding_tokens,
            evicted=len(output.free_encoder_mm_hashes),
            finished=finished,
            cache_tokens=core.cache_used,
            logical_bytes=sum(tensor.numel() * tensor.element_size() for tensor in outputs),
            alive_bytes=sum(storage_sizes(outputs).values()),
            kv_blocks=core.kv_blocks_used,
            peak_bytes=self.books.peak_bytes,
            held_bytes=self.books.held_bytes,
        )

    def _read_highest(self, step: TrafficStep) -> HighestStep:
        output = self.core.last_output
        return HighestStep(
            number=len(self.steps),
            origins=tuple(self._origins[name] for name in output.num_scheduled_tokens),
            encoding=tuple(self._origins[name] for name in output.scheduled_encoder_inputs),
            largest=self.books.largest,
            peak_bytes=step.peak_bytes,
        )
