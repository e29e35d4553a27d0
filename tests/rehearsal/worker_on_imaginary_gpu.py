"""Run as a program: bring vLLM's own worker up and print what the engine child reads from it."""

import json
import sys
from dataclasses import asdict

from mmcalib.child.rehearsal.startup import install, start_worker
from mmcalib.models.gpus import find_gpu

stage = install(find_gpu("H100-80G"))

from vllm.engine.arg_utils import EngineArgs  # noqa: E402 - only after the stand-ins

from mmcalib.child.worker import WorkerMethods, phase_peaks  # noqa: E402
from mmcalib.releases.runner import read_worker_memory, subtracts_graphs  # noqa: E402

config = EngineArgs(
    model=sys.argv[1],
    load_format="dummy",
    dtype="bfloat16",
    enforce_eager=True,
    limit_mm_per_prompt={"image": 1, "video": 0},
    mm_processor_kwargs={"max_pixels": 1_003_520},
    max_num_batched_tokens=8192,
    max_num_seqs=64,
).create_engine_config()
with start_worker(stage, config) as started:
    budget = WorkerMethods.mmcalib_budget(started.worker)
    assert budget is not None
    found = {
        "memory": asdict(
            read_worker_memory(started.worker, subtracts_graphs=subtracts_graphs(started.worker))
        ),
        "budget": {
            "tokens": budget.encoder_budget_tokens,
            "modality": budget.profiled_modality,
            "items": budget.profiled_items,
            "max_tokens": budget.profiled_embeds,
        },
        "again": phase_peaks(started.worker.model_runner),
        "phases": {one.name: one.peak_bytes - one.start_bytes for one in started.phases},
        "available_bytes": started.available_bytes,
    }
print(json.dumps(found))
