"""The configuration as a SkyPilot task, with the GPUs on which it fits.

Fields are those of SkyPilot's YAML specification, 2026, and names of GPUs those of its catalogue.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from mmcalib.gpus import catalogue
from mmcalib.report import emitted
from mmcalib.report.configuration_format import ConfigurationFormat
from mmcalib.report.needed import needed_on
from mmcalib.result.calibration import CalibrationDocument
from mmcalib.result.serve_arguments import serve_words

# Ours and SkyPilot's names, of GPUs that take bfloat16.
_NAMES: Mapping[str, str] = {
    "A10": "A10",
    "A10G": "A10G",
    "L4": "L4",
    "A40": "A40",
    "L40": "L40",
    "L40S": "L40S",
    "A100-40G": "A100",
    "A100-80G": "A100-80GB",
    "H100-80G": "H100",
    "H200": "H200",
    "B200": "B200",
}
_PORT = 8000


def skypilot_text(calibration: CalibrationDocument) -> str:
    """`resources.accelerators` are a choice; without a rehearsal they are left to the user."""
    config = emitted.without(calibration.engine_config)
    ranks = config.get("tensor_parallel_size", 1)
    words = shlex.join(serve_words(config))
    resources: dict[str, Any] = {}
    needed = needed_on(calibration)
    if needed is None:
        how = "Name resources.accelerators: nothing was rehearsed; mmcalib run --gpu NAME does."
    else:
        fitting = [
            theirs
            for ours, theirs in _NAMES.items()
            if (gpu := catalogue.find(ours)) and gpu.total_bytes >= needed.total_bytes
        ]
        how = (
            f"By memory: {needed.label} for {needed.gpu}, computed for the others; "
            "mmcalib rehearse --gpu NAME looks at each."
        )
        resources["accelerators"] = dict.fromkeys(fitting, ranks)
    resources["ports"] = _PORT
    given = emitted.variables(calibration)
    task = {
        "resources": resources,
        **({"envs": given} if given else {}),
        "setup": shlex.join(["pip", "install", f"vllm=={calibration.tool.vllm}"]) + "\n",
        "run": f"vllm serve {words} --port {_PORT}\n",
    }
    return emitted.head(calibration, how) + emitted.dump(task)


RENDERER = ConfigurationFormat("sky.yaml", skypilot_text, use="sky launch {file}", variables=True)
