"""The configuration as a KServe InferenceService, served by its Hugging Face runtime.

That runtime hands vLLM's engine arguments on as they are (KServe's documentation of it, 0.16).
"""

from __future__ import annotations

from mmcalib.report import emitted, kubernetes
from mmcalib.report.configuration_format import ConfigurationFormat
from mmcalib.result.calibration import CalibrationDocument


def kserve_text(calibration: CalibrationDocument) -> str:
    """One service; CPUs and memory of its pod are for the cluster to say."""
    config = emitted.without(calibration.engine_config)
    model = str(config.get("model", calibration.model.id))
    args = [
        "--model_name=vllm",
        f"--model_id={kubernetes.escaped(model)}",
        *kubernetes.words(emitted.without(config, "model")),
    ]
    gpus = str(config.get("tensor_parallel_size", 1))
    service = {
        "apiVersion": "serving.kserve.io/v1beta1",
        "kind": "InferenceService",
        "metadata": {"name": "vllm"},
        "spec": {
            "predictor": {
                "model": {
                    "modelFormat": {"name": "huggingface"},
                    "args": args,
                    **kubernetes.variables(calibration),
                    "resources": {"limits": {"nvidia.com/gpu": gpus}},
                }
            }
        },
    }
    said = emitted.head(
        calibration,
        f"Measured with vLLM {calibration.tool.vllm}; which one serves is for the runtime's image.",
    )
    return said + emitted.dump(service)


RENDERER = ConfigurationFormat(
    "kserve.yaml", kserve_text, use="kubectl apply -f {file}", variables=True
)
