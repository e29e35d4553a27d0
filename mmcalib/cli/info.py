"""Doctor, serve."""

from __future__ import annotations

from pathlib import Path

from mmcalib.cli.command import QUIET
from mmcalib.options.option import argument, option, options, switch


@options
class DoctorOptions:
    """How findings are printed."""

    as_json: bool = switch("Print what was found as JSON.", "--json")
    quiet: bool = QUIET


def doctor(options: DoctorOptions) -> None:
    """Look at the installation and the machine: what works, and what to type where not.

    Example: mmcalib doctor
    """
    from mmcalib.cli.command import print_json
    from mmcalib.cli.progress import terminal
    from mmcalib.errors import VerdictError
    from mmcalib.report.terminal import print_diagnosis
    from mmcalib.results.part import first_failed
    from mmcalib.workflows.doctor import examine

    console, progress = terminal(quiet=options.quiet)
    found = examine(progress=progress)
    if options.as_json:
        print_json(found)
    if not options.quiet:
        print_diagnosis(found, console)
    if found.verdict == "fail":
        failed = first_failed(found.checks)
        raise VerdictError(
            f"mmcalib run cannot work here: {failed.name}: {failed.detail}", hint=failed.remedy
        )


@options
class ServeOptions:
    """What `vllm serve` reads."""

    config: Path = option("FILE", "What `vllm serve --config` reads.", Path("out/engine.yaml"))
    flags: list[str] | None = argument("[-- VLLM FLAGS]", "Flags of `vllm serve`, after --.")


def serve(options: ServeOptions) -> None:
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

    config = options.config
    if not config.is_file():
        raise UsageError(
            f"--config {config}: no such file", hint="mmcalib run --model MODEL --data DIR"
        )
    if not any(map(installed, BUILDS)):
        raise EngineError("vLLM is not installed", hint="mmcalib doctor")
    sys.stdout.flush()
    # A model among the flags stands first, where vLLM looks for it.
    become_server([*(options.flags or []), "--config", str(config)], os.environ)
