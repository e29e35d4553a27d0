"""The real engine, and what it notes while it answers."""

from __future__ import annotations

from typing import Any

from vllm import LLM, SamplingParams


def started(arguments: dict[str, Any]) -> Any:
    return LLM(**arguments)


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
