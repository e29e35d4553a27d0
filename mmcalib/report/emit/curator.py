"""The configuration for NeMo Curator: keyword arguments of what starts vLLM there.

`create_vllm_llm` takes all (nemo_curator/utils/vllm_utils.py, August 2026); `QwenVL` sets some
itself (nemo_curator/models/qwen_vl.py), and would be given those twice.
"""

from __future__ import annotations

from mmcalib import wording
from mmcalib.report.configuration_format import ConfigurationFormat
from mmcalib.report.emitted import without
from mmcalib.report.python_source import dictionary
from mmcalib.result.calibration import CalibrationDocument

_SET_BY_QWEN_VL = (
    *("limit_mm_per_prompt", "quantization", "max_model_len", "gpu_memory_utilization"),
    *("mm_processor_kwargs", "mm_processor_cache_gb", "max_num_batched_tokens"),
)

_PAGE = """\
# vLLM configuration for {model}, made by mmcalib.
MODEL = {source!r}
# create_vllm_llm(MODEL, **CREATE_VLLM_LLM)
{all}
# QwenVL(..., **QWEN_VL): what it does not set itself.
{rest}{fixed}"""


def curator_text(calibration: CalibrationDocument) -> str:
    """Two dictionaries. Code of the model's repository, which Curator would run, is not run."""
    config = without(calibration.engine_args())
    source = config.pop("model", calibration.model.id)
    fixed = [name for name in _SET_BY_QWEN_VL if name in config]
    said = f"# It sets these itself, to other values: {', '.join(fixed)}.\n" if fixed else ""
    return _PAGE.format(
        model=wording.plain(calibration.model.id),
        source=source,
        all=dictionary("CREATE_VLLM_LLM", {"trust_remote_code": False, **config}),
        rest=dictionary("QWEN_VL", without(config, *_SET_BY_QWEN_VL)),
        fixed=said,
    )


RENDERER = ConfigurationFormat(
    "curator.py", curator_text, use="create_vllm_llm(MODEL, **CREATE_VLLM_LLM), as {file} says"
)
