"""A dataset through a module with the `config` of Ray Data LLM, as a program of a user's has it.

    python ray_data_process.py MODULE REQUESTS ANSWERS HERE

`HERE` is JSON that is laid over `config`; of REQUESTS each line is a row; ANSWERS gets a line of
JSON for each row that came out.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import ray
from ray.data.llm import build_processor, vLLMEngineProcessorConfig

# Of decoded media on their way between stages. Stages wait for each other where a machine has
# fewer CPUs: an actor of each has one for itself.
OBJECT_STORE_BYTES = 2 << 30
CPUS = 8
ANSWER_TOKENS = 4


def main(module: Path, requests: Path, answers: Path, here: dict[str, Any]) -> None:
    ray.init(
        address="local",
        num_cpus=CPUS,
        object_store_memory=OBJECT_STORE_BYTES,
        include_dashboard=False,
    )
    config = _laid_over(_imported(module).config, here)
    processor = build_processor(
        config,
        preprocess=lambda _: {"sampling_params": {"max_tokens": ANSWER_TOKENS, "ignore_eos": True}},
    )
    with answers.open("w", encoding="utf-8") as file:
        for row in processor(ray.data.read_json(str(requests))).iter_rows():
            kept = {
                "custom_id": row["custom_id"],
                "prompt_tokens": int(row["num_input_tokens"]),
                "answer_tokens": int(row["num_generated_tokens"]),
                "error": row["__inference_error__"],
            }
            file.write(json.dumps(kept) + "\n")


def _imported(file: Path) -> Any:
    spec = importlib.util.spec_from_file_location("engine", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _laid_over(config: Any, here: dict[str, Any]) -> Any:
    engine = {**config.engine_kwargs, **here.pop("engine_kwargs", {})}
    return vLLMEngineProcessorConfig(**{**config.model_dump(), **here, "engine_kwargs": engine})


if __name__ == "__main__":
    _module, _requests, _answers, _here = sys.argv[1:]
    main(Path(_module), Path(_requests), Path(_answers), json.loads(_here))
