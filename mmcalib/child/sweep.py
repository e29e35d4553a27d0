"""One size of the encoder sweep, in the started engine's worker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from mmcalib.child.exception_words import refusal_of
from mmcalib.child.host_memory import require_host_memory
from mmcalib.child.media import load
from mmcalib.domain.encoder_run import EncoderRun
from mmcalib.engine.messages import BatchEncoded, Blank, Encode
from mmcalib.releases import platforms

if TYPE_CHECKING:
    from mmcalib.child.model import OpenedModel


def encode(model: OpenedModel, llm: Any, request: Encode) -> BatchEncoded:
    """Encode the request's stand-ins; what vLLM or the device refuses is answered as a reason."""
    try:
        if platforms.current().is_cpu():
            require_host_memory(request.expected_bytes)
        blank = Blank(request.shape)
        media, _ = load(blank, model.under(request.setting))
        args = (request.modality, media, request.items)
        found = llm.collective_rpc("mmcalib_encode_batch", args=args)[0]
        return BatchEncoded(EncoderRun(*found))
    except Exception as error:  # noqa: BLE001 - the refusal is the measurement
        reason = refusal_of(error)
    # Out here nothing holds the tensors of the failed run any more.
    if platforms.current().is_cuda_alike():
        torch.cuda.empty_cache()
    return BatchEncoded(None, reason)
