"""Put chat requests (JSON on stdin) through vLLM's serving layer; print one line of JSON."""

import json
import sys
from typing import Any


def main() -> None:
    """`{"model", "contexts", "requests"}` to [prompt length, granted answer], or to the refusal."""
    from vllm.engine.arg_utils import EngineArgs
    from vllm.renderers import renderer_from_config
    from vllm.usage.usage_lib import UsageContext
    from vllm.v1.engine.input_processor import InputProcessor

    asked = json.load(sys.stdin)
    args = EngineArgs(asked["model"], load_format="dummy", allowed_local_media_path="/")
    config = args.create_engine_config(UsageContext.OPENAI_API_SERVER)
    renderer = renderer_from_config(config)
    found = []
    for context in asked["contexts"]:
        config.model_config.max_model_len = context
        inputs = InputProcessor(config, renderer)
        found.append([admitted(config, renderer, inputs, one) for one in asked["requests"]])
    print(json.dumps(found))


def admitted(config: Any, renderer: Any, inputs: Any, asked: dict[str, Any]) -> Any:
    """Answer as `OpenAIServingChat` does (vllm/entrypoints/openai/chat_completion/serving.py)."""
    from vllm import SamplingParams
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.entrypoints.serve.utils.api_utils import get_max_tokens

    try:
        request = ChatCompletionRequest.model_validate(asked)
        tools = [tool.model_dump() for tool in request.tools] if request.tools else None
        chat = request.build_chat_params(None, "auto")
        chat = chat.with_defaults({"tools": tools, "tokenize": False})
        tokens = request.build_tok_params(config.model_config)
        _, (prompt,) = renderer.render_chat([request.messages], chat, tokens)
        length = len(prompt["prompt_token_ids"])
        answer = request.max_completion_tokens or request.max_tokens
        granted = get_max_tokens(config.model_config.max_model_len, answer, length, {})
        sampling = SamplingParams(max_tokens=max(1, granted))
        inputs.process_inputs("0", prompt, sampling, supported_tasks=("generate",))
    except Exception as error:  # noqa: BLE001
        return str(error)
    return [length, granted]


if __name__ == "__main__":
    main()
