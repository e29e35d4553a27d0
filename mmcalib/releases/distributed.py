"""vLLM's groups of processes."""

from __future__ import annotations


def end_groups() -> None:
    from vllm.distributed import destroy_distributed_environment, destroy_model_parallel

    destroy_model_parallel()
    destroy_distributed_environment()
