"""Process a dataset by the `config` of a module for Ray Data LLM, as a program of a user's does.

    python ray_data_process.py MODULE REQUESTS ANSWERS HERE

`HERE` is JSON that is laid over `config`; each line of REQUESTS is a row; ANSWERS gets a line of
JSON for each row that came out.
"""

import json
import runpy
import sys

import ray
from ray.data.llm import build_processor, vLLMEngineProcessorConfig

if __name__ == "__main__":
    module, requests, answers, over = sys.argv[1:]
    # Of decoded media on their way between stages. Stages wait for each other where a machine has
    # fewer CPUs: an actor of each has one for itself.
    ray.init(address="local", num_cpus=8, object_store_memory=2 << 30, include_dashboard=False)
    config, here = runpy.run_path(module)["config"], json.loads(over)
    engine = {**config.engine_kwargs, **here.pop("engine_kwargs")}
    processor = build_processor(
        vLLMEngineProcessorConfig(**{**config.model_dump(), **here, "engine_kwargs": engine}),
        preprocess=lambda _: {"sampling_params": {"max_tokens": 4, "ignore_eos": True}},
    )
    with open(answers, "w", encoding="utf-8") as file:
        for row in processor(ray.data.read_json(requests)).iter_rows():
            kept = {
                "custom_id": row["custom_id"],
                "prompt_tokens": int(row["num_input_tokens"]),
                "answer_tokens": int(row["num_generated_tokens"]),
                "error": row["__inference_error__"],
            }
            file.write(json.dumps(kept) + "\n")
