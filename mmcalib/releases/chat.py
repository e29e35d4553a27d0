"""Prompts of chat requests as vLLM's server renders them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def renderer(engine_config: Any) -> Any:
    """What makes prompts of chat requests in a server of this configuration."""
    from vllm.renderers import renderer_from_config

    return renderer_from_config(engine_config)


def rendered(
    renderer: Any, messages: Sequence[Any], fields: Mapping[str, Any]
) -> tuple[str, list[int]]:
    """The prompt of a chat request and its tokens, neither truncated nor grown by its items: as
    `preprocess_chat` does it (vllm/renderers/online_renderer.py, 0.32).
    """
    from vllm.renderers.params import TokenizeParams

    request = _request(messages, fields)
    chat = request.build_chat_params(None, "auto")
    chat = chat.with_defaults({"tools": _tools(request), "tokenize": False})
    _, prompt = renderer.render_messages(request.messages, chat)
    for name in ("multi_modal_data", "multi_modal_uuids"):
        prompt.pop(name, None)
    plain = TokenizeParams(max_total_tokens=None, add_special_tokens=request.add_special_tokens)
    text = prompt.get("prompt", "")
    return text, list(renderer.tokenize_prompt(prompt, plain)["prompt_token_ids"])


def content_format(renderer: Any) -> Any:
    """How its template takes the content of a message. Raises ValueError where prompts are rendered
    in a way of their own.
    """
    from vllm.renderers import hf

    if not isinstance(renderer, hf.HfRenderer):
        raise ValueError(f"vLLM renders its prompts in code: {type(renderer).__name__}")
    return hf.resolve_chat_template_content_format(
        None, None, "auto", renderer.get_tokenizer(), model_config=renderer.model_config
    )


def enqueued(
    messages: Sequence[Any], fields: Mapping[str, Any], model_config: Any
) -> dict[str, Any]:
    """Arguments of `LLM.enqueue_chat` that render the request as a server would. Raises vLLM's
    error where a server refuses it for the answer that it asks for, at which nothing else looks.
    """
    request = _request(messages, fields)
    request.build_tok_params(model_config)
    chat = request.build_chat_params(None, "auto").chat_template_kwargs
    named = ("add_generation_prompt", "continue_final_message")
    return {
        **{name: getattr(request, name) for name in named},
        "tools": _tools(request),
        "chat_template_kwargs": {k: v for k, v in chat.items() if k not in named and v is not None}
        or None,
    }


def _request(messages: Sequence[Any], fields: Mapping[str, Any]) -> Any:
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest

    return ChatCompletionRequest.model_validate({**fields, "messages": messages})


def _tools(request: Any) -> list[dict[str, Any]] | None:
    return [tool.model_dump() for tool in request.tools] if request.tools else None
