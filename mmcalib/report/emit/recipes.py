"""The configuration as a fragment of a recipe of vllm-project/recipes.

Fields are those of its CONTRIBUTING.md, August 2026. `vram_minimum_gb` is there by a formula of
weights alone; here it is what was rehearsed, and a KV cache for one request of the whole context.
"""

from __future__ import annotations

import math
from typing import Any

from mmcalib.report import emitted
from mmcalib.report.configuration_format import ConfigurationFormat
from mmcalib.report.needed import needed_on
from mmcalib.result.calibration import CalibrationDocument
from mmcalib.result.serve_arguments import serve_words

_GB = 10**9


def recipe_text(calibration: CalibrationDocument) -> str:
    """`model` and one entry of `variants`."""
    config = emitted.without(calibration.engine_config)
    words = serve_words(emitted.without(config, "model"))
    variant: dict[str, Any] = {}
    needed = needed_on(calibration)
    if needed is None:
        how = "vram_minimum_gb is left out: nothing was rehearsed; mmcalib run --gpu NAME does."
    else:
        variant["vram_minimum_gb"] = math.ceil(needed.total_bytes / _GB)
        how = f"vram_minimum_gb: {needed.label} for {needed.gpu}, with one request of the context."
    variant["extra_args"] = words
    said = emitted.head(calibration, how)
    return said + emitted.dump(
        {
            "model": {"model_id": config.get("model", calibration.model.id)},
            "variants": {"default": variant},
        }
    )


RENDERER = ConfigurationFormat(
    "recipe.yaml", recipe_text, use="paste into your recipe what {file} says"
)
