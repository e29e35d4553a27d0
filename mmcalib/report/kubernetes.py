"""Words and variables as Kubernetes reads them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mmcalib.report import emitted
from mmcalib.result.calibration import CalibrationDocument
from mmcalib.result.serve_arguments import serve_words


def escaped(word: str) -> str:
    """Kubernetes replaces `$(NAME)` in arguments, and reads `$$` as `$`."""
    return word.replace("$", "$$")


def words(config: Mapping[str, Any]) -> list[str]:
    """What follows `vllm serve`, each word for a list of arguments."""
    return [escaped(word) for word in serve_words(config)]


def variables(calibration: CalibrationDocument) -> dict[str, Any]:
    """The `env` of a container, if it has any."""
    given = emitted.variables(calibration)
    return {"env": [{"name": n, "value": v} for n, v in given.items()]} if given else {}
