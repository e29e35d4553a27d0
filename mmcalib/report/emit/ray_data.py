"""The configuration for Ray Data LLM: a processor over datasets.

Fields are those of `vLLMEngineProcessorConfig` in ray.data.llm, Ray 2.60, which is made for vLLM
0.29: what loads media there (`PrepareMultimodalUDF`) imports `vllm.entrypoints.chat_utils`, and
that is elsewhere since 0.32.
"""

from __future__ import annotations

import math

from mmcalib import wording
from mmcalib.report.configuration_format import ConfigurationFormat
from mmcalib.report.emitted import without
from mmcalib.report.python_source import dictionary
from mmcalib.result.calibration import CalibrationDocument

# Its defaults: rows in a batch, and batches at once. Fewer rows than sequences leave some idle.
_ROWS, _BATCHES = 32, 8
# What the stage that loads media must know, too.
_OF_LOADING = ("media_io_kwargs", "allowed_local_media_path", "allowed_media_domains")

_PAGE = """\
# vLLM configuration for {model}, made by mmcalib with vLLM {vllm}.
# Ray 2.60 comes with vLLM 0.29, and loads no media beside 0.32 or later.
from ray.data.llm import build_processor, vLLMEngineProcessorConfig

MODEL = {source!r}
{engine}{loading}
CONFIG = vLLMEngineProcessorConfig(
    model_source=MODEL,
    engine_kwargs=dict(ENGINE_KWARGS),
    prepare_multimodal_stage={{"enabled": True, "model_config_kwargs": LOADING_KWARGS}},
{batch})

# Rows need `messages` and `sampling_params`, and files are named by `file://` below the folder of
# `allowed_local_media_path`.
if __name__ == "__main__":
    processor = build_processor(CONFIG)
"""


def ray_data_text(calibration: CalibrationDocument) -> str:
    """A module with `CONFIG`, and a script that builds the processor."""
    config = calibration.engine_args()
    sequences = config.get("max_num_seqs")
    batch = ""
    if isinstance(sequences, int) and sequences > _ROWS * _BATCHES:
        batch = f"    batch_size={math.ceil(sequences / _BATCHES)},\n"
    loading = {name: config[name] for name in _OF_LOADING if config.get(name) is not None}
    return _PAGE.format(
        model=wording.plain(calibration.model.id),
        vllm=wording.plain(calibration.tool.vllm),
        source=config.get("model", calibration.model.id),
        engine=dictionary("ENGINE_KWARGS", without(config, "model")),
        loading=dictionary("LOADING_KWARGS", loading),
        batch=batch,
    )


RENDERER = ConfigurationFormat(
    "ray-data.py", ray_data_text, use="build_processor(CONFIG), as at the end of {file}"
)
