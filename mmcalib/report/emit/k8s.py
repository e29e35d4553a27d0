"""The configuration for Kubernetes: a Deployment, complete as `kubectl apply` takes it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from mmcalib.derive.container import shm_bytes
from mmcalib.report import emitted, kubernetes
from mmcalib.report.configuration_format import ConfigurationFormat
from mmcalib.result.calibration import CalibrationDocument
from mmcalib.sizes import GIB

_NAME = "vllm"
_PORT = 8000
_MODELS = "/models"
_RANKS = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")


def kubernetes_text(calibration: CalibrationDocument) -> str:
    """One document. No path of this machine is in it: a model that is a folder here is one of a
    volume there.
    """
    config, notes = dict(calibration.engine_config), list[str]()
    shared = math.ceil(shm_bytes(config) / GIB)
    mounts = [{"name": "shm", "mountPath": "/dev/shm"}]  # noqa: S108 - of the container
    volumes: list[dict[str, Any]] = [
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": f"{shared}Gi"}}
    ]
    if calibration.model.source == "local":
        folder = PurePosixPath(str(config["model"])).name
        config["model"] = f"{_MODELS}/{folder}"
        mounts.append({"name": "models", "mountPath": _MODELS})
        volumes.append({"name": "models", "persistentVolumeClaim": {"claimName": "models"}})
        notes.append(f"The claim `models` holds the checkpoint as {folder}.")
    labels = {"app": _NAME}
    container = {
        "name": _NAME,
        "image": emitted.image(calibration),
        "command": ["vllm", "serve"],
        "args": kubernetes.words(config),
        **kubernetes.variables(calibration),
        "ports": [{"containerPort": _PORT}],
        "readinessProbe": {"httpGet": {"path": "/health", "port": _PORT}},
        "resources": {"limits": {"nvidia.com/gpu": str(_gpus(config))}},
        "volumeMounts": mounts,
    }
    pod = {"containers": [container], "volumes": volumes}
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": _NAME, "labels": dict(labels)},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": dict(labels)},
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }
    return emitted.head(calibration, *notes) + emitted.dump(deployment)


def _gpus(config: Mapping[str, Any]) -> int:
    ranks = (config.get(name) for name in _RANKS)
    return math.prod(n for n in ranks if isinstance(n, int) and n > 0)


RENDERER = ConfigurationFormat(
    "k8s.yaml", kubernetes_text, use="kubectl apply -f {file}", variables=True
)
