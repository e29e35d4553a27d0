"""The configuration as a stage of vllm-omni's deploy files: the one that reads media.

Names are those of `StageDeployConfig` and `DeployConfig` in vllm_omni/config/stage_config.py, 2026,
which hands what it has no field for to the stage's engine.
"""

from __future__ import annotations

from mmcalib.report import emitted
from mmcalib.report.configuration_format import ConfigurationFormat
from mmcalib.result.calibration import CalibrationDocument

# Of all stages alike.
_OF_ALL = (
    *("dtype", "quantization", "enable_prefix_caching", "enable_chunked_prefill"),
    *("data_parallel_size", "pipeline_parallel_size", "distributed_executor_backend"),
)


def omni_text(calibration: CalibrationDocument) -> str:
    """An overlay with stage 0; the others, and the model's name, stay as they are."""
    config = emitted.without(calibration.engine_config, "model")
    of_all = {name: value for name, value in config.items() if name in _OF_ALL}
    stage = {"stage_id": 0, **emitted.without(config, *_OF_ALL)}
    said = emitted.head(
        calibration,
        "Stage 0 alone reads media. Calibrated with the GPU to itself: stages that share it",
        "need a smaller gpu_memory_utilization here.",
    )
    return said + emitted.dump({**of_all, "stages": [stage]})


RENDERER = ConfigurationFormat(
    "omni.yaml",
    omni_text,
    use="merge {file} into the deploy file of your model",
    variables=False,
)
