"""What serving asks of the loaded model and no startup profile runs: other steps of the encoder,
and the merge of its outputs with the embeddings of the text.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, Final

import torch

from mmcalib.child.exception_words import root_cause
from mmcalib.child.rehearsal.device.ledger import Ledger, LedgerPhase
from mmcalib.child.rehearsal.graphs import Graphs
from mmcalib.child.rehearsal.startup import Brought, note_outputs
from mmcalib.domain.knobs import Setting
from mmcalib.domain.memory import Budget, EncoderStep, Outputs, StepPeak
from mmcalib.domain.shapes import AudioShape, ImageShape, Shape, VideoShape
from mmcalib.engine.messages import Blank
from mmcalib.releases.budget import worker_budget
from mmcalib.releases.kv_cache import sequences_at_once
from mmcalib.releases.models import embeds_width
from mmcalib.releases.runner import encoded, encoder_batches, run_prefill

# Items that any model takes, of every modality: an icon, a second of video or sound.
_SMALL: Final[Mapping[str, Shape]] = {
    "image": ImageShape(256, 256),
    "video": VideoShape(8, 8.0, 1.0, 256, 256),
    "audio": AudioShape(16_000, 16_000),
}


def outputs_of(
    config: Any, brought: Brought, ledger: Ledger, budget: Budget | None
) -> Outputs | None:
    """What the profile's encoder outputs hold; where it was skipped, those of two small items;
    where there is no encoder, the width of the decoder's embeddings, which is that of embeddings
    handed in. None for a model that takes text alone.
    """
    if not config.model_config.is_multimodal_model:
        return None
    # vLLM frees those of an encoder-decoder model after their step (`EncoderDecoderCacheManager`,
    # vllm/v1/core/encoder_cache_manager.py of 0.32).
    outlive = not config.model_config.is_encoder_decoder
    found = [phase for phase in brought.phases if phase.embeddings]
    shape = _SMALL.get((budget.profiled_modality if budget else None) or "")
    if not found and shape is not None:
        with contextlib.suppress(Exception):
            phase = _encoded(config, brought, ledger, EncoderStep(shape, 2))
            each = -(-phase.output_bytes // phase.embeddings)
            return Outputs(each, shared=phase.storages < phase.items, outlive=outlive)
    if not found:
        width = embeds_width(config) * config.model_config.dtype.itemsize
        return Outputs(width, outlive=outlive)
    last = found[-1]
    shared = last.storages < last.items if last.items > 1 else None
    return Outputs(-(-last.output_bytes // last.embeddings), last.output_bytes, shared, outlive)


def encoder_steps(
    config: Any, brought: Brought, ledger: Ledger, steps: tuple[EncoderStep, ...]
) -> Iterator[StepPeak]:
    """Each step's peak on the GPU that holds the loaded model; one that fails says why."""
    for step in steps:
        try:
            phase = _encoded(config, brought, ledger, step)
        except Exception as error:  # noqa: BLE001 - what one step lacks leaves the others alone
            yield StepPeak(step, None, None, root_cause(error))
        else:
            yield StepPeak(step, phase.peak_bytes - phase.start_bytes, phase.embeddings)


def _encoded(config: Any, brought: Brought, ledger: Ledger, step: EncoderStep) -> LedgerPhase:
    """As the model runner does it: items of one modality in as few batches as it makes of them."""
    # The oldest releases have no such media; there the step says so.
    from mmcalib.child.media import load
    from mmcalib.child.processor import Processor

    modality, model_config = step.shape.modality, config.model_config
    loading = Setting(media_io_kwargs=model_config.multimodal_config.media_io_kwargs)
    under = Processor(model_config, worker_budget(brought.worker).processor, loading)
    media, _ = load(Blank(step.shape), under)
    # As the profile counts, whose kernels' workspaces stay.
    with ledger.phase("encoder", since=brought.profile) as phase:
        batches, _ = encoder_batches(brought.worker, modality, media, step.items)
        note_outputs(phase, encoded(brought.worker.model_runner.model, batches))
    return phase


# A step of one token is no prompt to vLLM (`split_decodes_and_prefills`,
# vllm/v1/attention/backends/utils.py of 0.32, whose threshold is 1).
_SHORTEST_PROMPT: Final = 2


def prefills(
    config: Any, brought: Brought, ledger: Ledger, layout: Any, graphs: Graphs
) -> Iterator[tuple[int, LedgerPhase]]:
    """Steps full of prompts, as serving runs them, of a model with recurrent layers: vLLM's profile
    leaves out what they compute (vllm#52872). One of a single prompt, and one of as many as may
    come at once: each brings its state, which is gathered and written anew (`_forward_core`,
    vllm/model_executor/layers/mamba/gdn/qwen_gdn_linear_attn.py of 0.32), and a chunk of 64 tokens
    that it need not fill (`prepare_chunk_indices`). None of any other model.

    What attention keeps from its first step on, such as FlashInfer's workspace, is in the steps but
    for what startup's estimate of CUDA graphs has of it. Fills the KV cache, and comes last: a
    profile would not find its memory afterwards.
    """
    if not config.model_config.is_hybrid or layout is None:
        return
    brought.worker.initialize_from_config(layout)
    tokens = config.scheduler_config.max_num_batched_tokens
    fewest = -(-tokens // config.model_config.max_model_len)
    at_once = min(config.scheduler_config.max_num_seqs, sequences_at_once(layout))
    most = max(fewest, min(at_once, tokens // _SHORTEST_PROMPT))
    with ledger.phase("first step") as first:
        run_prefill(brought.worker, tokens, fewest)
    kept = brought.profile.end_bytes - brought.profile.start_bytes
    kept += graphs.beside_bytes if graphs.nbytes else first.end_bytes - first.start_bytes
    for prompts in sorted({fewest, most}):
        with ledger.phase("prefill") as phase:
            run_prefill(brought.worker, tokens, prompts)
        # As the profile counts, whose kernels' workspaces stay.
        phase.start_bytes -= kept
        yield prompts, phase


def merge_peak(
    config: Any, brought: Brought, ledger: Ledger, budget: Budget | None, outputs: Outputs | None
) -> int | None:
    """Bytes above the loaded model and the cached outputs while a step full of them is merged; None
    where nothing is merged, or the model wants more than that to do it.
    """
    if budget is None or outputs is None or config.model_config.is_encoder_decoder:
        return None
    model, dtype = brought.worker.model_runner.model, config.model_config.dtype
    tokens = min(budget.max_num_batched_tokens, budget.encoder_cache_size)
    if not tokens or not hasattr(model, "embed_input_ids"):
        return None
    device = brought.worker.device
    width = outputs.bytes_per_token // dtype.itemsize
    cached = torch.empty(tokens, width, dtype=dtype, device=device)
    ids = torch.zeros(tokens, dtype=torch.int32, device=device)
    try:
        with ledger.phase("merge", since=brought.profile) as phase:
            model.embed_input_ids(
                ids,
                multimodal_embeddings=[cached],
                is_multimodal=torch.ones(tokens, dtype=torch.bool, device="cpu"),
            )
    except Exception:  # noqa: BLE001 - what the merge lacks leaves the startup's figures alone
        return None
    return phase.peak_bytes - phase.start_bytes - int(cached.untyped_storage().nbytes())
