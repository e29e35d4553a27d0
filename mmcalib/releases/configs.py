"""Engine arguments, and the configurations that vLLM makes of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from vllm.engine.arg_utils import EngineArgs
from vllm.usage.usage_lib import UsageContext

# Making the arguments would look the model up: by their names they are known without.
ARGUMENTS = tuple(field.name for field in fields(EngineArgs))


def served_config(arguments: Mapping[str, Any]) -> Any:
    """The engine config of `vllm serve`."""
    return EngineArgs(**arguments).create_engine_config(UsageContext.OPENAI_API_SERVER)


def offline_config(arguments: Mapping[str, Any]) -> Any:
    """The engine config of `vllm.LLM`, whose defaults differ on a GPU."""
    return EngineArgs(**arguments).create_engine_config(UsageContext.LLM_CLASS)


def model_config(arguments: Mapping[str, Any]) -> Any:
    return EngineArgs(**arguments).create_model_config()
