"""`mmcalib plan` and `mmcalib validate`."""

from __future__ import annotations

from pathlib import Path

from mmcalib.cli import command
from mmcalib.errors import MmcalibError, VerdictError
from mmcalib.options.option import option, options, switch
from mmcalib.options.run import ALLOWED_DOMAINS, ALLOWED_ROOT, REQUESTS, ProofOptions
from mmcalib.version import __version__


@options
class PlanOptions:
    flags: list[str] | None = command.PLAN_FLAGS
    model: str | None = option(
        "MODEL", "Checkpoint folder or hub id; may come from --config or --log instead."
    )
    gpu: str | None = option(
        "NAME", "Such as H100-80G or L4; auto, the default without --log: this machine's."
    )
    described: command.GpuOptions
    config: Path | None = command.CONFIG_FILE
    goal: str = option("GOAL", "fits, concurrency>=16 or kv_tokens>=200k.", "fits")
    keep: list[str] | None = option(
        "ARG[=LEAST]",
        "An argument that no fix may change, such as kv_cache_dtype, or lower below a value, as in "
        "max_model_len=32k; repeatable.",
    )
    log: Path | None = option(
        "FILE",
        "Log of a vLLM server, with model, GPU and arguments; FILE:LINE picks one of several.",
    )
    as_json: bool = switch("Print the plan as JSON.", "--json")
    verbose: bool = command.VERBOSE
    quiet: bool = command.QUIET


def plan(options: PlanOptions) -> None:
    """Find the least changes that make a model fit a GPU, from a server's log or by rehearsal.

    Example: mmcalib plan --model Qwen/Qwen2.5-VL-7B-Instruct --gpu L4 --goal "concurrency>=4"
    """
    from mmcalib.cli.progress import terminal
    from mmcalib.models.gpus import find_gpu
    from mmcalib.remedies.memory import parse_kept
    from mmcalib.report.terminal_memory import print_log, print_plan
    from mmcalib.results.plan import Plan
    from mmcalib.workflows.plan.from_log import read_server_log

    gpu = command.gpu_named(options.gpu, options.described)
    kept = options.keep or []
    console, progress = terminal(quiet=options.quiet, verbose=options.verbose)
    answer = server_log = None
    if options.log is not None:
        # At once: all else imports much, and rehearsals take half a minute.
        server_log = read_server_log(options.log, options.model)
        known = gpu if not isinstance(gpu, str) else None if gpu == "auto" else find_gpu(gpu)
        answer = server_log.answer(known, parse_kept(kept))
        if not options.quiet:
            print_log(answer, console)
    try:
        from mmcalib.workflows.plan.plan import plan as plan_for

        proposal = plan_for(
            options.model,
            gpu=gpu,
            config=options.config,
            flags=options.flags or [],
            goal=options.goal,
            keep=kept,
            progress=progress,
            server_log=server_log,
        )
    except MmcalibError as error:
        if options.as_json and answer is not None:
            failed = Plan(goal=options.goal, verdict="not rehearsed", mmcalib=__version__)
            more = {"kept": kept, "log": answer, "problem": error.message}
            command.print_json(failed.model_copy(update=more))
        raise
    if options.as_json:
        command.print_json(proposal)
    if not options.quiet:
        print_plan(proposal, console, verbose=options.verbose)
    if proposal.verdict == "not reproduced" and answer is not None:
        found = [f"{fix.flags}, computed from the log" for fix in answer.fixes] or [answer.least]
        hint = found[0] or "nvidia-smi shows other processes; --log FILE with the whole startup"
        raise VerdictError("the log's failure is not reproduced", hint=hint)
    if proposal.verdict in ("under-reserved", "out of reach"):
        hint = "a smaller model, another --gpu, or a lower --goal"
        raise VerdictError(
            f"no combination of fixes meets {proposal.goal} on {proposal.gpu}",
            hint=hint + (", or less to --keep" if kept else ""),
        )


@options
class ValidateOptions:
    flags: list[str] | None = command.FILE_AND_FLAGS
    config: Path | None = command.CONFIG_FILE
    model: str | None = option(
        "MODEL", "Checkpoint folder or hub id; may come from the file instead."
    )
    data: list[Path] | None = option(
        "DIR",
        "Media that you serve; may be repeated. Default: blank media of the largest admitted "
        "sizes.",
    )
    requests: list[Path] | None = REQUESTS
    allowed_local_media_path: Path | None = ALLOWED_ROOT
    allowed_media_domains: list[str] | None = ALLOWED_DOMAINS
    gpu: str | None = option(
        "NAME", "GPU that serves, such as H100-80G, to rehearse its memory; auto: this machine's."
    )
    described: command.GpuOptions
    proof: ProofOptions
    as_json: bool = switch("Print the checks as JSON.", "--json")
    verbose: bool = command.VERBOSE
    quiet: bool = command.QUIET


def validate(options: ValidateOptions) -> None:
    """Check an existing vLLM config: do its settings take effect, and is enough reserved?

    Example: mmcalib validate engine.yaml --gpu L4

    Example: mmcalib validate deployment.yaml --gpu L4 -- --max-num-seqs 64
    """
    from mmcalib.cli.progress import terminal
    from mmcalib.report.terminal_memory import print_validation
    from mmcalib.results.part import first_failed
    from mmcalib.workflows.validate.validate import validate as validate_config

    console, progress = terminal(quiet=options.quiet, verbose=options.verbose)
    result = validate_config(
        options.config,
        model=options.model,
        data=options.data or [],
        requests=options.requests or [],
        allowed_local_media_path=options.allowed_local_media_path,
        allowed_media_domains=options.allowed_media_domains or (),
        gpu=command.gpu_named(options.gpu, options.described),
        flags=options.flags or [],
        validate=options.proof.validate,
        startup_budget_s=options.proof.startup_budget_s,
        progress=progress,
    )
    if options.as_json:
        command.print_json(result)
    if not options.quiet:
        print_validation(result, console)
    if result.verdict == "fail":
        failed = first_failed(result.checks)
        hint = next(iter(failed.remedies), "")
        detail = f": {failed.detail}" if options.quiet else ""
        raise VerdictError(f"failed at {failed.code} {failed.name}{detail}", hint=hint)
