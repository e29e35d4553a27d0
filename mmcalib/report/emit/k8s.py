"""The configuration for Kubernetes: arguments of a container, or a file in a ConfigMap."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mmcalib import wording
from mmcalib.report import kubernetes
from mmcalib.report.configuration_format import ConfigurationFormat
from mmcalib.report.emit.env import left_out_words
from mmcalib.report.emitted import dump
from mmcalib.result.calibration import CalibrationDocument
from mmcalib.result.engine_yaml import engine_yaml

_FOLDER = "/etc/vllm"
_FILE = "engine.yaml"
_CONFIG = "vllm-engine"

_HEAD = """\
# vLLM configuration for {model}, made by mmcalib.
# Two ways to the same engine; take one. `vllm` stands for the names of your Deployment and its
# container. A model that is a folder must be mounted there, too.
{left_out}
# 1. As arguments. They change with the Deployment, which then starts its pods anew.
"""
_SECOND = """\
# 2. As a file, with the reason of each value. This goes to the cluster ...
"""
_THIRD = """\
# ... and this to the Deployment, instead of 1. Pods do not start anew when the file changes:
# kubectl rollout restart deployment/vllm
"""


def kubernetes_text(calibration: CalibrationDocument) -> str:
    """Three YAML documents: a Deployment's part with `args`, a ConfigMap with `engine.yaml`, and
    a Deployment's part that mounts it.
    """
    listed = kubernetes.words(calibration.engine_config)
    path = f"{_FOLDER}/{_FILE}"
    content = engine_yaml(calibration, f"vllm serve --config {path}")
    config_map = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": _CONFIG},
        "data": {_FILE: content},
    }
    server = calibration.server
    more = kubernetes.variables(calibration)
    left_out = "".join(f"{line}\n" for line in (left_out_words(server) if server else ()))
    mounting = {
        **more,
        "args": ["--config", path],
        "volumeMounts": [{"name": _CONFIG, "mountPath": _FOLDER, "readOnly": True}],
    }
    volume = {"name": _CONFIG, "configMap": {"name": _CONFIG}}
    return "---\n".join(
        (
            _HEAD.format(model=wording.plain(calibration.model.id), left_out=left_out)
            + dump(_deployment({**more, "args": listed})),
            _SECOND + dump(config_map),
            _THIRD + dump(_deployment(mounting, volumes=[volume])),
        )
    )


def _deployment(container: Mapping[str, Any], **pod: Any) -> dict[str, Any]:
    """The part of a Deployment that says how its container starts."""
    started = {"name": "vllm", "command": ["vllm", "serve"], **container}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "vllm"},
        "spec": {"template": {"spec": {"containers": [started], **pod}}},
    }


RENDERER = ConfigurationFormat(
    "k8s.yaml",
    kubernetes_text,
    use="paste into your Deployment what {file} says",
    variables=True,
)
