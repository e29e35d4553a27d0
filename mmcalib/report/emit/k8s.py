"""The configuration for Kubernetes: arguments of a container, or a file in a ConfigMap."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from mmcalib import wording
from mmcalib.report.configuration_format import ConfigurationFormat
from mmcalib.report.emit.env import left_out_words
from mmcalib.report.serve_arguments import serve_arguments
from mmcalib.result.calibration import CalibrationDocument
from mmcalib.result.engine_yaml import engine_yaml, visible_yaml

_FOLDER = "/etc/vllm"
_FILE = "engine.yaml"
_CONFIG = "vllm-engine"
# Argument lists are read by people; no line of them is folded.
_WIDTH = 10_000

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
    listed = [
        _escaped(word) for option in serve_arguments(calibration.engine_config) for word in option
    ]
    path = f"{_FOLDER}/{_FILE}"
    content = engine_yaml(calibration, f"vllm serve --config {path}")
    config_map = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": _CONFIG},
        "data": {_FILE: content},
    }
    server = calibration.server
    variables = server.environment if server else {}
    limits = {"env": [{"name": n, "value": str(v)} for n, v in variables.items()]}
    more = limits if variables else {}
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
            + _dump(_deployment({**more, "args": listed})),
            _SECOND + _dump(config_map),
            _THIRD + _dump(_deployment(mounting, volumes=[volume])),
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


def _escaped(word: str) -> str:
    """Kubernetes replaces `$(NAME)` in arguments, and reads `$$` as `$`."""
    return word.replace("$", "$$")


class _Dumper(yaml.SafeDumper):
    """Text of several lines as a block, as people write it."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


def _dump(document: Mapping[str, Any]) -> str:
    return visible_yaml(_Dumper, document, width=_WIDTH)


RENDERER = ConfigurationFormat(
    "k8s.yaml",
    kubernetes_text,
    use="paste into your Deployment what {file} says",
    variables=True,
)
