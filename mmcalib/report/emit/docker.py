"""The configuration as `docker run` of vLLM's official image."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator
from pathlib import PurePosixPath

from mmcalib import wording
from mmcalib.derive.container import processor_caches_bytes, shm_bytes
from mmcalib.report import emitted
from mmcalib.report.configuration_format import ConfigurationFormat
from mmcalib.report.sayable import check_visible
from mmcalib.result.calibration import CalibrationDocument
from mmcalib.result.serve_arguments import serve_arguments
from mmcalib.sizes import GIB

_PORT = 8000
_HUB = '--env HF_HOME=/hub --volume "${HF_HOME:-$HOME/.cache/huggingface}:/hub"'


def docker_text(calibration: CalibrationDocument) -> str:
    """A script of one command, whose own arguments go to `vllm serve` behind ours.

    Raises OutputError where a value has a character that hides, which a shell has no escape for.
    """
    words = " \\\n    ".join(_words(calibration))
    check_visible(words, "docker")
    held = processor_caches_bytes(calibration.engine_config)
    memory = (
        f"Of main memory the processor cache may take {wording.gib(held)} (computed), beside what "
        "vLLM takes itself: leave room for both where --memory is set."
    )
    return f'{emitted.head(calibration, memory)}exec {words} \\\n    "$@"\n'


def _words(calibration: CalibrationDocument) -> Iterator[str]:
    """Each line of the command."""
    config = calibration.engine_config
    yield "docker run --rm --gpus all"
    yield f"--shm-size {math.ceil(shm_bytes(config) / GIB)}g"
    yield f"--publish {_PORT}:{_PORT}"
    for name, value in emitted.variables(calibration).items():
        yield shlex.join(["--env", f"{name}={value}"])
    model = str(config.get("model", ""))
    if PurePosixPath(model).is_absolute():
        yield shlex.join(["--mount", f"type=bind,source={model},target={model},readonly"])
    else:
        yield _HUB
    yield f"--entrypoint vllm {emitted.image(calibration)} serve"
    for option in serve_arguments(config):
        yield shlex.join(option)


RENDERER = ConfigurationFormat("docker.sh", docker_text, use="sh {file}", variables=True)
