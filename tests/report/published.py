"""What is published of the files that others read: fields and types of what our forms write, each
with its source. Kept here because no package brings it.
"""

from __future__ import annotations

from typing import Any

NUMBER = {"type": ["integer", "number", "string"]}
STRINGS = {"type": "array", "items": {"type": "string"}}
VARIABLES = {
    "type": "array",
    "items": {
        "type": "object",
        "required": ["name", "value"],
        "additionalProperties": False,
        "properties": {"name": {"type": "string"}, "value": {"type": "string"}},
    },
}


def closed(required: list[str], **properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "required": required,
        "additionalProperties": False,
        "properties": properties,
    }


# helm/values.schema.json of vllm-project/production-stack at a6c01db0, 5 August 2026.
HELM = closed(
    ["servingEngineSpec"],
    servingEngineSpec=closed(
        ["modelSpec"],
        modelSpec={
            "type": "array",
            "items": closed(
                ["name", "repository", "tag", "modelURL", "vllmConfig"],
                name={"type": "string"},
                repository={"type": "string"},
                tag={"type": "string"},
                modelURL={"type": "string"},
                replicaCount={"type": "integer"},
                requestGPU=NUMBER,
                env={"type": "array"},
                vllmConfig=closed(
                    [],
                    maxModelLen={"type": "integer"},
                    maxNumSeqs={"type": "integer"},
                    gpuMemoryUtilization=NUMBER,
                    tensorParallelSize={"type": "integer"},
                    dtype={"type": "string"},
                    enableChunkedPrefill={"type": "boolean"},
                    enablePrefixCaching={"type": "boolean"},
                    extraArgs=STRINGS,
                ),
            ),
        },
    ),
)
# CONTRIBUTING.md of vllm-project/recipes at 8959cf6, 21 August 2026.
RECIPE = closed(
    ["model", "variants"],
    model=closed(["model_id"], model_id={"type": "string"}),
    variants=closed(
        ["default"],
        default=closed(
            ["extra_args"], vram_minimum_gb={"type": "integer", "minimum": 1}, extra_args=STRINGS
        ),
    ),
)
# "Hugging Face runtime" in KServe's documentation of 0.16, and config/runtimes at aac4e294.
KSERVE = closed(
    ["apiVersion", "kind", "metadata", "spec"],
    apiVersion={"const": "serving.kserve.io/v1beta1"},
    kind={"const": "InferenceService"},
    metadata=closed(["name"], name={"type": "string"}),
    spec=closed(
        ["predictor"],
        predictor=closed(
            ["model"],
            model=closed(
                ["modelFormat", "args"],
                modelFormat=closed(["name"], name={"const": "huggingface"}),
                args=STRINGS,
                env=VARIABLES,
                resources=closed(["limits"], limits={"type": "object"}),
            ),
        ),
    ),
)
_CONTAINER = closed(
    ["image"], image={"type": "string"}, command=STRINGS, args=STRINGS, env=VARIABLES
)
# Dynamo's guide to rolling updates, v1alpha1, release 1.4.
DYNAMO = closed(
    ["apiVersion", "kind", "metadata", "spec"],
    apiVersion={"const": "nvidia.com/v1alpha1"},
    kind={"const": "DynamoGraphDeployment"},
    metadata=closed(["name"], name={"type": "string"}),
    spec=closed(
        ["services"],
        services={
            "type": "object",
            "required": ["Frontend"],
            "additionalProperties": closed(
                ["componentType", "replicas", "extraPodSpec"],
                componentType={"enum": ["frontend", "worker"]},
                replicas={"type": "integer"},
                resources=closed(["limits"], limits=closed(["gpu"], gpu={"type": "string"})),
                extraPodSpec=closed(["mainContainer"], mainContainer=_CONTAINER),
            ),
        },
    ),
)
# sky/utils/schemas.py of skypilot-org/skypilot at 00052df, and its YAML specification.
SKYPILOT = closed(
    ["resources", "setup", "run"],
    resources=closed(
        ["ports"],
        accelerators={"type": "object", "additionalProperties": {"type": "number"}},
        ports={"type": ["integer", "string"]},
    ),
    envs={"type": "object", "additionalProperties": {"type": "string"}},
    setup={"type": "string"},
    run={"type": "string"},
)
# `StageDeployConfig` and `DeployConfig` in vllm_omni/config/stage_config.py: what a stage has no
# field for is handed to its engine; these are of all stages alike, and refused in one.
OMNI = closed(
    ["stages"],
    stages={
        "type": "array",
        "items": {
            "type": "object",
            "required": ["stage_id"],
            "properties": {
                "stage_id": {"type": "integer"},
                "gpu_memory_utilization": {"type": "number"},
                "max_num_seqs": {"type": "integer"},
                "max_num_batched_tokens": {"type": "integer"},
                "max_model_len": {"type": "integer"},
                "mm_processor_cache_gb": {"type": "number"},
                **dict.fromkeys(["model", "dtype", "quantization", "enable_prefix_caching"], False),
            },
        },
    },
    dtype={"type": "string"},
    quantization={"type": "string"},
    enable_prefix_caching={"type": "boolean"},
    enable_chunked_prefill={"type": "boolean"},
)
# `SyntheticImageDataArgs` and `SyntheticVideoDataArgs` in guidellm/data/deserializers at ee7a7745,
# 7 August 2026.
GUIDELLM: dict[str, dict[str, type[int] | type[float]]] = {
    "synthetic_image": {"width": int, "height": int, "images_per_request": int},
    "synthetic_video": {"width": int, "height": int, "frames": int, "fps": float},
}
# `create_vllm_llm` in nemo_curator/utils/vllm_utils.py, and what `QwenVL` in
# nemo_curator/models/qwen_vl.py hands to `LLM` itself, at 1e2e4275, 21 August 2026.
CURATOR_OWN = {
    *("model", "limit_mm_per_prompt", "quantization", "max_model_len", "gpu_memory_utilization"),
    *("mm_processor_kwargs", "mm_processor_cache_gb", "max_num_batched_tokens"),
}
