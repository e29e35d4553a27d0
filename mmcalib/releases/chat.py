"""Prompts of chat requests as vLLM's server renders them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mmcalib.domain.shapes import Modality


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


def template(renderer: Any, tools: list[dict[str, Any]] | None) -> tuple[str, Any]:
    """What it renders requests with or without tools by: the template, and how it takes the content
    of a message. Raises ValueError where it has none, or
    does so in a way of its own.
    """
    from vllm.renderers import hf

    if not isinstance(renderer, hf.HfRenderer):
        raise ValueError(f"vLLM renders its prompts in code: {type(renderer).__name__}")
    tokenizer, config = renderer.get_tokenizer(), renderer.model_config
    text = hf.resolve_chat_template(tokenizer, None, tools, model_config=config)
    if text is None:
        raise ValueError("it has no chat template")
    content = hf.resolve_chat_template_content_format(
        None, tools, "auto", tokenizer, model_config=config
    )
    return text, content


def placeholder(renderer: Any, modality: Modality) -> str | None:
    """What stands for an item in a message of one text, nothing where its model has none such; None
    where each item has one of its own.
    """
    from vllm.model_executor.model_loader import get_model_cls

    model = get_model_cls(renderer.model_config)
    first, second = (model.get_placeholder_str(modality, number) for number in (1, 2))
    return first or "" if first == second else None


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
