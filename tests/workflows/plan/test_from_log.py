"""What a plan takes over from a server's log."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from mmcalib.models import gpus
from mmcalib.releases.constants import CONTEXT_BYTES
from mmcalib.text import GIB
from mmcalib.workflows.plan import from_log
from tests.workflows.rehearsals import rehearsed


def written(folder: Path, *lines: str) -> from_log.ServerLog:
    (folder / "server.log").write_text("\n".join(lines))
    return from_log.read_server_log(folder / "server.log")


def test_what_the_engine_took_by_default_is_rehearsed_as_it_was(tmp_path: Path) -> None:
    """Defaults differ between releases: 0.9 had 2,048 batched tokens where 0.32 has 8,192."""
    found = written(
        tmp_path,
        "vLLM API server version 0.31.0",
        "non-default args: {'model': 'm', 'max_model_len': 2048, 'port': 1, 'seed': 3}",
        "Using max model len 4096",
        "Chunked prefill is enabled with max_num_batched_tokens=2048.",
        "CUDA out of memory. Tried to allocate 1.00 GiB. GPU 0 has a total capacity of 8.00 GiB",
    )
    assert found.engine_args == {
        "model": "m",
        "max_model_len": 2048,
        "max_num_batched_tokens": 2048,
    }
    said = from_log.describe_log(found, rehearsed(), gpus.find_gpu("L4"))
    assert said.notes == [
        "the log is from vLLM 0.31.0; mmcalib rehearsed vLLM 0.32.0",
        "the log is from a GPU with 8.00 GiB; mmcalib rehearsed L4",
        "defaults of the log's engine: max_num_batched_tokens=2048",
        "ignored arguments of the log: seed",
    ]


def test_the_memory_that_other_processes_hold_is_read_from_the_log(tmp_path: Path) -> None:
    """A server that starts alone on an L4 finds all of it free but for its context."""
    message = "ValueError: Free memory on device cuda:0 ({free}/22.04 GiB) on startup is less than"
    l4 = gpus.find_gpu("L4")
    for free, expected in ((17.06, round(17.06 * GIB) + CONTEXT_BYTES), (21.7, None)):
        log = written(tmp_path, message.format(free=free) + " desired GPU memory utilization").log
        assert from_log.with_free_of_log(l4, log).free_bytes == expected
        given = gpus.with_free_memory(l4, "9GiB")
        assert from_log.with_free_of_log(given, log) == given
    # Of two GPUs: 0.84 GiB are the context and NCCL, not another process.
    taken = CONTEXT_BYTES + l4.nccl_bytes
    for free, expected in ((17.06, round(17.06 * GIB) + taken), (21.2, None)):
        log = written(tmp_path, message.format(free=free) + " desired GPU memory utilization").log
        several = replace(log, engine_args={"tensor_parallel_size": 2})
        assert from_log.with_free_of_log(l4, several).free_bytes == expected
    other = gpus.find_gpu("H100-80G")
    assert from_log.with_free_of_log(other, log) == other
