"""Models, gpus, doctor, serve."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mmcalib.cli.command import Quiet, ServeWords


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print what was found as JSON.")] = False,
    quiet: Quiet = False,
) -> None:
    """Look at the installation and the machine: what works, and what to type where not.

    Example: mmcalib doctor
    """
    from rich.console import Console

    from mmcalib.cli.command import print_json
    from mmcalib.cli.progress import Terminal
    from mmcalib.errors import VerdictError
    from mmcalib.progress import Silent
    from mmcalib.report.terminal import print_diagnosis
    from mmcalib.results.part import first_failed
    from mmcalib.workflows.doctor import examine

    console = Console(stderr=True, highlight=False)
    found = examine(progress=Silent() if quiet else Terminal(console))
    if as_json:
        print_json(found)
    if not quiet:
        print_diagnosis(found, console)
    if found.verdict == "fail":
        failed = first_failed(found.checks)
        raise VerdictError(
            f"mmcalib run cannot work here: {failed.name}: {failed.detail}", hint=failed.remedy
        )


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
