"""Real chat requests through the started engine: some admitted only, some answered together."""

from __future__ import annotations

import time
from typing import Any

from mmcalib.child.exception_words import exhausted, refusal_of
from mmcalib.engine.messages import Answered, Replay, Replayed, ReplayPrompt
from mmcalib.releases import chat, platforms
from mmcalib.releases.engine import RequestWatch, greedy

# One token proves that the prompt was admitted, encoded and prefilled; more would only cost time.
_ANSWER_TOKENS = 1


def replay(llm: Any, request: Replay) -> Replayed:
    """Take in and drop every prompt that is to be admitted only; then queue the others, before the
    first step, and run the engine until all are answered.
    """
    started = time.perf_counter()
    queued: dict[str, ReplayPrompt] = {}
    answers: list[Answered] = []
    admitted: list[Answered] = []
    held = _peak(llm, None)
    with RequestWatch(llm) as watch:
        for prompt in request.admit:
            if error := _enqueue(llm, prompt):
                admitted.append(_rejected(prompt, error))
                continue
            admitted.append(Answered(prompt.origin, "", *watch.added))
            llm.llm_engine.abort_request([watch.last_added])
        for prompt in request.prompts:
            if error := _enqueue(llm, prompt):
                answers.append(_rejected(prompt, error))
                continue
            queued[watch.last_added] = prompt
        outputs = {o.request_id: o for o in llm.wait_for_completion(use_tqdm=False)}
    for request_id, prompt in queued.items():
        output = outputs.get(request_id)
        done = output is not None and output.finished
        answers.append(
            Answered(
                prompt.origin,
                "" if done else "the engine gave no answer",
                len(output.prompt_token_ids or ()) if output else 0,
                watch.item_tokens[request_id],
            )
        )
    return Replayed(
        tuple(answers),
        time.perf_counter() - started,
        watch.largest_encoder_step_tokens,
        tuple(admitted),
        peak_bytes=_peak(llm, held),
    )


def _peak(llm: Any, start_bytes: int | None) -> int | None:
    """What the first worker holds on its GPU, or peaked at above that; None without a GPU."""
    if not platforms.current().is_cuda():
        return None
    found: int = llm.collective_rpc("mmcalib_peak", args=(start_bytes,))[0]
    return found


def _rejected(prompt: ReplayPrompt, error: Exception) -> Answered:
    return Answered(prompt.origin, refusal_of(error), 0, (), exhausted(error) == "memory")


def _enqueue(llm: Any, prompt: ReplayPrompt) -> Exception | None:
    """Queue one prompt; what vLLM raises where it rejects it, or the answer that it asks for."""
    sampling = greedy(_ANSWER_TOKENS)
    try:
        options = chat.enqueued(prompt.messages, prompt.fields, llm.model_config)
        llm.enqueue_chat([prompt.messages], sampling, use_tqdm=False, **options)
    except Exception as error:  # noqa: BLE001 - a rejection is what replay looks for
        return error
    return None
