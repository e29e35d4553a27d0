"""Requests served to their end by vLLM's engine core: prompts, steps, and their memory's books."""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final

from mmcalib.child.processor import Processor, load
from mmcalib.child.service import refusal_of
from mmcalib.child.tensors import storages
from mmcalib.domain.knobs import Setting
from mmcalib.domain.memory import LiveTensor
from mmcalib.domain.shapes import Shape
from mmcalib.domain.traffic import Arrivals, HighestStep, Traffic, TrafficRequest, TrafficStep
from mmcalib.engine.messages import Blank, ServeTraffic
from mmcalib.releases.engine import PlacedItem, SteppedCore, stepped_config
from mmcalib.releases.processors import create_processor, process_item


class StepBooks:
    """Of a real engine: every step is executed, and nobody knows what it took.

    `largest` are the tensors at the last step's peak; `reserved_bytes` is that of `Traffic`.
    """

    largest: tuple[LiveTensor, ...] = ()
    reserved_bytes: int | None = None

    def prepare(self, config: Any) -> None:
        """Change the engine config, before anything is made of it."""

    def profile(self, worker: Any, method: Callable[[], Any]) -> Any:
        """Run the worker's startup profile."""
        return method()

    def began(self, core: SteppedCore) -> None:
        """The engine is up."""

    def run(self, decided: Any, work: Callable[[], None]) -> None:
        """Have a step executed, or leave it out."""
        work()

    def entered(self, step: TrafficStep) -> TrafficStep:
        """The step that was run last, with its memory."""
        return step

    def end(self, core: SteppedCore) -> None:
        """All is served, or something failed."""
        core.end()


# Words of made-up text, away from the tokens that tokenizers put first for their own use.
_FIRST_WORD: Final = 300
_WORDS: Final = 700
# Enough words to tell one text from all others.
_TELLING: Final = 3


class Prompts:
    """Makes prompts for the model of an engine config; each shape is processed once."""

    def __init__(self, config: Any) -> None:
        self._known: dict[Shape, tuple[list[int], Any, Any]] = {}
        self._alone = itertools.count()
        model = config.model_config
        loading = Setting(media_io_kwargs=model.multimodal_config.media_io_kwargs)
        self._under = Processor(model, create_processor(model), loading)

    def make(self, request: TrafficRequest) -> tuple[list[int], list[PlacedItem]]:
        """The tokens of a request, with its items in place; those of an encoder-decoder model stand
        apart, at 0. Raises what vLLM raises for an item that it refuses.
        """
        apart = self._under.config.is_encoder_decoder
        prompt = request.prompt or (self._unlike_others(request.text_tokens),)
        left, items = list(request.items), list[PlacedItem]()
        ids = list[int]()
        # Items that the prompt has no place for come after it.
        for part in (*prompt, *(item.shape.modality for item in left)):
            if not isinstance(part, str):
                ids += part
                continue
            item = next((one for one in left if one.shape.modality == part), None)
            if item is None:
                continue
            left.remove(item)
            placeholders, data, position = self._item(item.shape)
            position = replace(position, offset=0 if apart else len(ids))
            items.append(PlacedItem(item.content, item.shape.modality, data, position))
            if not apart:
                ids += placeholders
        return ids, items

    def _unlike_others(self, tokens: int) -> tuple[int, ...]:
        number = next(self._alone)
        words = [number // _WORDS**place % _WORDS for place in range(_TELLING)]
        words += itertools.repeat(0, max(0, tokens - _TELLING))
        return tuple(_FIRST_WORD + word for word in words[: max(1, tokens)])

    def _item(self, shape: Shape) -> tuple[list[int], Any, Any]:
        """Its placeholder tokens, what the processor made of it, and where those tokens stood."""
        if shape not in self._known:
            media, _ = load(Blank(shape), self._under)
            modality = shape.modality
            done = process_item(self._under.processor, modality, media)
            place = done["mm_placeholders"][modality][0]
            ids = list(done["prompt_token_ids"])[place.offset : place.offset + place.length]
            self._known[shape] = ids, done["mm_kwargs"][modality][0], place
        return self._known[shape]


Say = Callable[[str], None]
_EVERY_STEPS = 50


def serve(request: ServeTraffic, books: StepBooks, say: Say) -> Traffic:
    """Serve the requests in order until all have answers. Raises whatever vLLM raises."""
    config = stepped_config(request.engine_args)
    books.prepare(config)
    core = SteppedCore(config, run=books.run, profile=books.profile)
    try:
        books.began(core)
        prompts = Prompts(config)
        started = time.perf_counter()
        served = _Served(core, books, prompts, deque(request.requests), request.arrivals)
        while served.step():
            if len(served.steps) % _EVERY_STEPS == 0:
                say(f"{served.finished:,} of {len(request.requests):,} requests served")
        return Traffic(
            steps=tuple(served.steps),
            highest=served.highest,
            refused=tuple(served.refused),
            kv_blocks=core.kv_blocks,
            cache_tokens=core.cache_size,
            reused=core.reused,
            cached_tokens=served.cached_tokens,
            reserved_bytes=books.reserved_bytes,
            seconds=time.perf_counter() - started,
        )
    finally:
        books.end(core)


@dataclass(slots=True)
class _Served:
    """Requests under way; `coming` ones are not there yet."""

    core: SteppedCore
    books: StepBooks
    prompts: Prompts
    coming: deque[TrafficRequest]
    arrivals: Arrivals
    steps: list[TrafficStep] = field(default_factory=list)
    refused: list[tuple[str, str]] = field(default_factory=list)
    highest: HighestStep | None = None
    come: int = 0
    finished: int = 0
    cached_tokens: int = 0
    now_s: float = 0.0
    _peak_bytes: int = 0
    _origins: dict[str, str] = field(default_factory=dict)

    def step(self) -> bool:
        """Let come what comes, and take a step; False when all is done."""
        if self.coming and self.arrivals.by_the_clock and not self.core.busy:
            # Nothing is done until the next one comes, and no step is taken.
            self.now_s = max(self.now_s, self._due_s(self.coming[0]))
        while self.coming and self._comes(self.coming[0]):
            self._ask(self.coming.popleft())
            self.come += 1
        if not self.core.busy:
            return bool(self.coming)
        finished = self.core.step()
        self.finished += finished
        self.now_s += self.arrivals.step_s
        step = self.books.entered(self._decided(finished))
        if not (step.scheduled or self.core.busy):
            # The engine only hands out its last answers.
            return bool(self.coming)
        if (step.peak_bytes or 0) > self._peak_bytes:
            self._peak_bytes = step.peak_bytes or 0
            self.highest = self._highest()
        self.steps.append(step)
        return True

    def _comes(self, request: TrafficRequest) -> bool:
        arrivals = self.arrivals
        if arrivals.concurrency is not None:
            return self.core.unfinished < arrivals.concurrency
        return not arrivals.by_the_clock or self._due_s(request) <= self.now_s

    def _due_s(self, request: TrafficRequest) -> float:
        rate = self.arrivals.rate
        return request.sent_s if rate is None else self.come / rate

    def _ask(self, request: TrafficRequest) -> None:
        try:
            ids, items = self.prompts.make(request)
        except Exception as error:  # noqa: BLE001 - a server refuses such a request too
            self.refused.append((request.origin, refusal_of(error)))
            return
        # As `InputProcessor` refuses them (vllm/v1/engine/input_processor.py, 0.32).
        room = self.core.config.model_config.max_model_len - len(ids)
        if room <= 0:
            why = f"{len(ids):,} tokens leave no room for an answer"
            self.refused.append((request.origin, why))
            return
        largest = max((item.embeds for item in items), default=0)
        if largest > self.core.cache_size:
            why = f"an item of {largest:,} tokens, and the encoder cache holds"
            self.refused.append((request.origin, f"{why} {self.core.cache_size:,}"))
            return
        answer = min(max(1, request.answer_tokens), room)
        name = self.core.ask(ids, items, answer)
        self._origins[name] = request.origin

    def _decided(self, finished: int) -> TrafficStep:
        core, decided = self.core, self.core.decided
        outputs = core.encoder_outputs()
        encoded = decided.scheduled_encoder_inputs if decided else {}
        new = decided.scheduled_new_reqs if decided else ()
        self.cached_tokens += sum(one.num_computed_tokens for one in new)
        return TrafficStep(
            new=len(new),
            scheduled=len(decided.num_scheduled_tokens) if decided else 0,
            waiting=core.waiting,
            preempted=len(decided.preempted_req_ids or ()) if decided else 0,
            held_up=len(core.held_up),
            tokens=decided.total_num_scheduled_tokens if decided else 0,
            encoded=sum(map(len, encoded.values())),
            encoder_tokens=core.encoding_tokens,
            evicted=len(decided.free_encoder_mm_hashes) if decided else 0,
            finished=finished,
            cache_tokens=core.cache_used,
            logical_bytes=sum(one.numel() * one.element_size() for one in outputs),
            alive_bytes=sum(storages(outputs).values()),
            kv_blocks=core.kv_blocks_used,
        )

    def _highest(self) -> HighestStep:
        decided = self.core.decided
        scheduled = decided.num_scheduled_tokens if decided else {}
        encoding = decided.scheduled_encoder_inputs if decided else {}
        return HighestStep(
            number=len(self.steps),
            origins=tuple(self._origins[name] for name in scheduled),
            encoding=tuple(self._origins[name] for name in encoding),
            largest=self.books.largest,
        )
