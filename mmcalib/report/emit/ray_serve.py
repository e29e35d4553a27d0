"""The configuration for Ray Serve LLM: an application for `serve run`.

Fields are those of `LLMConfig` in ray.serve.llm, and of `ServeDeploySchema` in ray.serve, 2.60.
"""

from __future__ import annotations

from typing import Any

from mmcalib.report import emitted
from mmcalib.report.configuration_format import ConfigurationFormat
from mmcalib.result.calibration import CalibrationDocument


def ray_serve_text(calibration: CalibrationDocument) -> str:
    """One application of one model."""
    config = emitted.without(calibration.engine_args())
    given = emitted.variables(calibration)
    model: dict[str, Any] = {
        "model_loading_config": {
            "model_id": "vllm",
            "model_source": config.get("model", calibration.model.id),
        },
        "engine_kwargs": emitted.without(config, "model"),
        **({"runtime_env": {"env_vars": given}} if given else {}),
    }
    application = {
        "name": "llm",
        "route_prefix": "/",
        "import_path": "ray.serve.llm:build_openai_app",
        "args": {"llm_configs": [model]},
    }
    return emitted.head(calibration) + emitted.dump({"applications": [application]})


RENDERER = ConfigurationFormat(
    "ray-serve.yaml", ray_serve_text, use="serve run {file}", variables=True
)
