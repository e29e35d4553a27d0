"""`mmcalib doctor` and `mmcalib serve`."""

from __future__ import annotations

from pathlib import Path

from mmcalib.cli.command import QUIET
from mmcalib.options.option import argument, option, options, switch


@options
class DoctorOptions:
    as_json: bool = switch("Print the checks as JSON.", "--json")
    quiet: bool = QUIET


def doctor(options: DoctorOptions) -> None:
    """Check the installation and the machine, and print a fix for each problem.

    Example: mmcalib doctor
    """
    from mmcalib.cli.command import print_json
    from mmcalib.cli.progress import terminal
    from mmcalib.errors import VerdictError
    from mmcalib.report.terminal import print_diagnosis
    from mmcalib.results.part import first_failed
    from mmcalib.workflows.doctor import diagnose

    console, progress = terminal(quiet=options.quiet)
    diagnosis = diagnose(progress=progress)
    if options.as_json:
        print_json(diagnosis)
    if not options.quiet:
        print_diagnosis(diagnosis, console)
    if diagnosis.verdict == "fail":
        failed = first_failed(diagnosis.checks)
        raise VerdictError(
            f"mmcalib run does not work here yet: {failed.code} {failed.name}", hint=failed.remedy
        )


@options
class ServeOptions:
    config: Path = option("FILE", "The file for `vllm serve --config`.", Path("out/engine.yaml"))
    flags: list[str] | None = argument("[-- VLLM FLAGS]", "Flags of `vllm serve`, after --.")


def serve(options: ServeOptions) -> None:
    """Run `vllm serve` where its own script fails to start.

    The script looks for a package named vllm, which vLLM's CPU build is not, and it imports
    torchvision, which fails if only torch is a CPU build. Elsewhere use `vllm serve`.

    Example: mmcalib serve --config out/engine.yaml -- --port 8000
    """
    import os
    import sys

    from mmcalib.engine.environment import become_server
    from mmcalib.engine.wheels import BUILDS, installed_version
    from mmcalib.errors import EngineError, UsageError

    config = options.config
    if not config.is_file():
        raise UsageError(
            f"--config {config}: no such file", hint="mmcalib run --model MODEL --data DIR"
        )
    if not any(map(installed_version, BUILDS)):
        raise EngineError("vLLM is not installed", hint="mmcalib doctor")
    sys.stdout.flush()
    # vLLM reads a model among the flags only in front.
    become_server([*(options.flags or []), "--config", str(config)], os.environ)
