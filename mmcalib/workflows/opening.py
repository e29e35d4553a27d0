"""The model opened in vLLM."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mmcalib.domain.model import ModelInfo
from mmcalib.engine.host import EngineHost
from mmcalib.engine.messages import OpenModel
from mmcalib.errors import ModelError, NotMultimodal
from mmcalib.models import ResolvedModel
from mmcalib.progress import Progress

LISTS_MODELS = "mmcalib list models (multimodal ones)"


def context_of(engine_args: Mapping[str, Any]) -> int | None:
    """The context that a configuration asks for; None where it leaves that to vLLM, as -1 does."""
    wanted = engine_args.get("max_model_len")
    return wanted if isinstance(wanted, int) and wanted > 0 else None


def open_model(
    host: EngineHost,
    resolved: ResolvedModel,
    progress: Progress,
    *,
    context_tokens: int | None = None,
    engine_args: Mapping[str, Any] | None = None,
    text_only: ModelError | None = None,
) -> ModelInfo:
    """Open the model in the child, with its own context unless another is named, and with
    `engine_args` that the server has besides.

    Raises EngineError where vLLM refuses it, `text_only` where it takes no media.
    """
    request = OpenModel(resolved.path, context_tokens, engine_args=dict(engine_args or {}))
    with progress.step("opening the model in vLLM"):
        try:
            return host.ask(request, "opening the model").model
        except NotMultimodal:
            raise (text_only or takes_no_media(resolved)) from None


def takes_no_media(
    resolved: ResolvedModel, so: str = "", hint: str = f"{LISTS_MODELS}, or --model another"
) -> ModelError:
    """Of a model that is text-only, and `so`."""
    return ModelError(f"{resolved.id} takes no images, video or audio{so}", hint=hint)
