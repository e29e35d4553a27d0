"""`mmcalib serve`: `vllm serve`, also where its own script does not start."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mmcalib.cli.options import ServeWords


def serve(
    config: Annotated[
        Path, typer.Option(metavar="FILE", help="What `vllm serve --config` reads.")
    ] = Path("out/engine.yaml"),
    flags: ServeWords = None,
) -> None:
    """Be `vllm serve`: for installations where its own script does not start.

    vLLM's CPU build is no package named vllm, which the script asks for; and CUDA-built torchvision
    beside CPU-only torch does not import. Elsewhere `vllm serve` is all that is needed.

    Example: mmcalib serve --config out/engine.yaml -- --port 8000
    """
    import os
    import sys

    from mmcalib.engine.environment import become_server
    from mmcalib.engine.wheels import BUILDS, installed
    from mmcalib.errors import EngineError, UsageError

    if not config.is_file():
        raise UsageError(
            f"--config {config}: no such file", hint="mmcalib run --model MODEL --data DIR"
        )
    if not any(map(installed, BUILDS)):
        raise EngineError("vLLM is not installed", hint="mmcalib doctor")
    sys.stdout.flush()
    # A model among the flags stands first, where vLLM looks for it.
    become_server([*(flags or []), "--config", str(config)], os.environ)
