"""The configuration as values of production-stack's Helm chart.

Fields are those of helm/values.schema.json of vllm-project/production-stack, August 2026. What it
has no field for goes to `extraArgs`, as words of `vllm serve`.
"""

from __future__ import annotations

from mmcalib.report import emitted, kubernetes
from mmcalib.report.configuration_format import ConfigurationFormat
from mmcalib.result.calibration import CalibrationDocument

_FIELDS = {
    "max_model_len": "maxModelLen",
    "max_num_seqs": "maxNumSeqs",
    "gpu_memory_utilization": "gpuMemoryUtilization",
    "tensor_parallel_size": "tensorParallelSize",
    "dtype": "dtype",
    "enable_chunked_prefill": "enableChunkedPrefill",
    "enable_prefix_caching": "enablePrefixCaching",
}


def helm_text(calibration: CalibrationDocument) -> str:
    """`servingEngineSpec` with one model; CPUs and memory of its pod are for the cluster to say."""
    config = emitted.without(calibration.engine_config)
    own = {field: config[name] for name, field in _FIELDS.items() if name in config}
    words = kubernetes.words(emitted.without(config, "model", *_FIELDS))
    model = {
        "name": "vllm",
        "repository": "vllm/vllm-openai",
        "tag": f"v{calibration.tool.vllm}",
        "modelURL": config.get("model", calibration.model.id),
        "replicaCount": 1,
        "requestGPU": config.get("tensor_parallel_size", 1),
        "vllmConfig": {**own, **({"extraArgs": words} if words else {})},
        **kubernetes.variables(calibration),
    }
    said = emitted.head(calibration, "Add requestCPU and requestMemory of your nodes.")
    return said + emitted.dump({"servingEngineSpec": {"modelSpec": [model]}})


RENDERER = ConfigurationFormat(
    "helm.yaml",
    helm_text,
    use="helm install vllm vllm/vllm-stack -f {file}",
    variables=True,
)
