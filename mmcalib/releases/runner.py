"""vLLM's model runner inside its worker: the phases of its profile, its encoder, its budget."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final

from mmcalib.releases.release import VLLM_0_13, VLLM_0_29

# Phase → the runner's method that is it, in both of vLLM's model runners; the encoder is the
# model's own method.
RUNNER_PHASES: Final = {"language model": "_dummy_run", "sampler": "_dummy_sampler_run"}
ENCODER: Final = "embed_multimodal" if VLLM_0_13.reached else "get_multimodal_embeddings"

_Method = Callable[..., Any]


def uses_v2_runner(worker: Any) -> bool:
    """Whether it is the second of vLLM's model runners; older releases have one."""
    return VLLM_0_13.reached and bool(worker.use_v2_model_runner)


def estimates_graphs(worker: Any) -> bool:
    """Whether its model runner estimates what CUDA graphs will take: the second one since 0.29."""
    return VLLM_0_29.reached or not uses_v2_runner(worker)


def gpu_worker(config: Any) -> Any:
    """vLLM's CUDA worker, one rank, not yet brought up."""
    from vllm.v1.worker.gpu_worker import Worker

    # Under tensor parallelism, one rank of several that are alike.
    return Worker(config, 0, 0, "env://", is_driver_worker=True)


@contextmanager
def watched_phases(
    runner: Any, model: Any, watch: Callable[[str, _Method], _Method]
) -> Iterator[None]:
    """While open, each phase of a profile runs through what `watch` made of its name and method. A
    model without an encoder, or a release that leaves it out of its profile, has no such phase.
    """
    owners = [(runner, name, method) for name, method in RUNNER_PHASES.items()]
    if getattr(model, ENCODER, None) is not None:
        owners.append((model, "encoder", ENCODER))
    with ExitStack() as undo:
        for owner, name, method in owners:
            undo.callback(owner.__dict__.pop, method, None)
            owner.__dict__[method] = watch(name, getattr(owner, method))
        yield


def run_prefill(worker: Any, tokens: int, prompts: int) -> None:
    """A step of `tokens` of so many prompts alike, once there is a KV cache: with attention, and
    with the recurrent layers that a profile leaves out.
    """
    runner = worker.model_runner
    # The tokens of a dummy step are spread over as many requests as there may be.
    owner, most, attending = runner.scheduler_config, "max_num_seqs", {"force_attention": True}
    if uses_v2_runner(worker):
        owner, most, attending = runner, "max_num_reqs", {"skip_attn": False}
    true = getattr(owner, most)
    setattr(owner, most, prompts)
    try:
        runner._dummy_run(tokens, **attending)
    finally:
        setattr(owner, most, true)


def encoded(model: Any, batches: list[dict[str, Any]]) -> list[Any]:
    """What the model's encoder makes of batches: an output per item."""
    return [out for batch in batches for out in getattr(model, ENCODER)(**batch)]


def encoder_batches(
    worker: Any, modality: str, media: Any, items: int
) -> tuple[list[dict[str, Any]], int]:
    """One processed item, `items` times over, batched as the model runner batches them for the
    encoder; and the embeds of one.
    """
    from vllm.multimodal.utils import group_and_batch_mm_kwargs

    from mmcalib.releases.budget import worker_budget
    from mmcalib.releases.processors import apply_processor

    runner, processor = worker.model_runner, worker_budget(worker).processor
    text = processor.dummy_inputs.get_dummy_text({modality: 1})
    ids = processor.info.get_tokenizer().encode(text)
    output = apply_processor(processor, ids, {modality: [media]})
    equal = [(modality, output["mm_kwargs"][modality][0])] * items
    # As in `_execute_mm_encoder` (vllm/v1/worker/gpu_model_runner.py, 0.32).
    alone = modality == "video" and (
        getattr(runner, "is_multimodal_pruning_enabled", False)
        or getattr(runner, "requires_sequential_video_encoding", False)
    )
    batches = [
        kwargs
        for group in ([[one] for one in equal] if alone else [equal])
        for _, _, kwargs in group_and_batch_mm_kwargs(group, device=runner.device, pin_memory=False)
    ]
    placeholders = output["mm_placeholders"][modality]
    return batches, sum(p.get_num_embeds() for p in placeholders)
