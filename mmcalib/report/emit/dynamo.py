"""The configuration as a DynamoGraphDeployment: a frontend and one worker of vLLM.

Fields are those of nvidia.com/v1alpha1 as Dynamo's own examples have them, in 2026.
"""

from __future__ import annotations

from typing import Any

from mmcalib.report import emitted, kubernetes
from mmcalib.report.configuration_format import ConfigurationFormat
from mmcalib.result.calibration import CalibrationDocument

_IMAGE = "nvcr.io/nvidia/ai-dynamo/vllm-runtime:TAG"


def dynamo_text(calibration: CalibrationDocument) -> str:
    """The worker prefills and decodes; whoever splits it gives these arguments to each part."""
    config = emitted.without(calibration.engine_config)
    model = str(config.get("model", calibration.model.id))
    container: dict[str, Any] = {
        "image": _IMAGE,
        "command": ["python3", "-m", "dynamo.vllm"],
        "args": [
            *("--model", kubernetes.escaped(model)),
            *kubernetes.words(emitted.without(config, "model")),
        ],
        **kubernetes.variables(calibration),
    }
    services = {
        "Frontend": {
            "componentType": "frontend",
            "replicas": 1,
            "extraPodSpec": {"mainContainer": {"image": _IMAGE}},
        },
        "VllmWorker": {
            "componentType": "worker",
            "replicas": 1,
            "resources": {"limits": {"gpu": str(config.get("tensor_parallel_size", 1))}},
            "extraPodSpec": {"mainContainer": container},
        },
    }
    document = {
        "apiVersion": "nvidia.com/v1alpha1",
        "kind": "DynamoGraphDeployment",
        "metadata": {"name": "vllm"},
        "spec": {"services": services},
    }
    said = emitted.head(
        calibration, f"TAG is a release of Dynamo with vLLM {calibration.tool.vllm}."
    )
    return said + emitted.dump(document)


RENDERER = ConfigurationFormat(
    "dynamo.yaml", dynamo_text, use="kubectl apply -f {file}", variables=True
)
