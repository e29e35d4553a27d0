"""`mmcalib rehearse`: predicts the memory of an engine configuration on any GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from mmcalib.cli import command
from mmcalib.domain.traffic import STEP_S
from mmcalib.errors import UsageError, VerdictError
from mmcalib.limits.policy import TEXT_RESERVE_TOKENS
from mmcalib.options.option import Bounds, option, options, switch
from mmcalib.options.run import ALLOWED_ROOT, Positive, count_option

_STEP_MS = STEP_S * 1000
AboveZero = Annotated[float, Bounds(gt=0)]
_MORE = {"wrong": "{option} must be above 0, not {given}", "hint": "{option} 1"}


@options
class RehearseOptions:
    flags: list[str] | None = command.FILE_AND_FLAGS
    model: str | None = option(
        "MODEL", "Checkpoint folder or hub id; may come from --config instead."
    )
    gpu: str | None = option("NAME", "Such as H100-80G or L4; auto, the default: this machine's.")
    described: command.GpuOptions
    config: Path | None = command.CONFIG_FILE
    compare: tuple[Path, Path] | None = option("FILE FILE", "Compare two such files.")
    data: list[str] | None = option("SOURCE", "Media of --requests; may be repeated.")
    requests: list[Path] | None = option(
        "FILE", "JSONL of chat requests to simulate after the startup; may be repeated."
    )
    allowed_local_media_path: Path | None = ALLOWED_ROOT
    concurrency: Positive | None = count_option("Requests at a time. Default: all at once.")
    rate: AboveZero | None = option("R", "Requests per second, if a step takes --step-ms.", **_MORE)
    timestamps: bool = switch('Send each request at its own "timestamp".')
    step_ms: AboveZero = option(
        "MS", "Assumed time of a step, for --rate and --timestamps.", _STEP_MS, **_MORE
    )
    answer_tokens: Positive = count_option(
        "Answer length of requests without max_tokens.", TEXT_RESERVE_TOKENS
    )
    strict: bool = switch("Exit 3 if the engine would not start.")
    as_json: bool = switch("Print JSON; a list of two with --compare.", "--json")
    verbose: bool = command.VERBOSE
    quiet: bool = command.QUIET

    def __post_init__(self) -> None:
        """Raise UsageError for options that exclude each other."""
        unserved, jsonl = not self.requests, "--requests requests.jsonl"
        arrivals = (self.concurrency is not None) + (self.rate is not None) + self.timestamps
        paces = "--concurrency, --rate and --timestamps"
        paced = self.rate is not None or self.timestamps
        answers, steps = self.answer_tokens != TEXT_RESERVE_TOKENS, self.step_ms != _STEP_MS
        both, one = self.config and self.compare, "--requests needs one configuration"
        named = self.model or self.flags or self.config or self.compare
        for wrong, message, hint in (
            (self.data and unserved, "--data needs --requests", "mmcalib run tunes for your media"),
            (self.requests and self.compare, one, "--config FILE"),
            (arrivals > 1, f"{paces} exclude each other", "--concurrency 64"),
            (arrivals and unserved, f"{paces} need --requests", jsonl),
            (answers and unserved, "--answer-tokens needs --requests", jsonl),
            (steps and not paced, "--step-ms needs --rate or --timestamps", "--rate 2"),
            (both, "--config and --compare exclude each other", "--compare FILE FILE"),
            (not named, "no model given", "--model MODEL, or `model:` in --config"),
        ):
            if wrong:
                raise UsageError(message, hint=hint)


def rehearse(options: RehearseOptions) -> None:
    """Predict vLLM's memory and encoder budget on a GPU, by running its startup code without it.

    Example: mmcalib rehearse --model Qwen/Qwen2.5-VL-3B-Instruct --gpu L4 -- --max-model-len 32768
    """
    from mmcalib.cli.progress import terminal
    from mmcalib.configs.read import WrittenConfiguration
    from mmcalib.domain.traffic import Arrivals
    from mmcalib.models.gpus import AUTO
    from mmcalib.report.terminal_memory import print_rehearsals, print_traffic
    from mmcalib.workflows.traffic.rehearse import rehearse as rehearse_all

    gpu = command.gpu_named(options.gpu, options.described) or AUTO
    console, progress = terminal(quiet=options.quiet, verbose=options.verbose)
    flags, paces = options.flags or [], (options.concurrency, options.rate, options.step_ms / 1000)
    rehearsals = rehearse_all(
        options.model,
        gpu=gpu,
        configs=options.compare or (options.config,),
        flags=flags,
        requests=options.requests or [],
        data=options.data or [],
        arrivals=Arrivals(*paces, timed=options.timestamps),
        answer_tokens=options.answer_tokens,
        allowed_root=options.allowed_local_media_path,
        progress=progress,
    )
    failed = [one for one in rehearsals if not one.starts]
    if options.as_json:
        command.print_json(rehearsals if options.compare else rehearsals[0])
    if not options.quiet:
        config = next((Path(one.config) for one in failed if one.config), None)
        written = WrittenConfiguration(config, model=options.model, flags=tuple(flags))
        plan = written.command("plan", None if gpu == AUTO else gpu)
        print_rehearsals(rehearsals, console, plan, verbose=options.verbose)
        if traffic := rehearsals[0].traffic:
            print_traffic(traffic, rehearsals[0].gpu, console)
    if options.strict and failed:
        raise VerdictError(
            f"vLLM would not start on {failed[0].gpu}: {failed[0].memory.note}",
            hint="mmcalib run --gpu NAME tunes for your media",
        )
    if options.strict and any(one.traffic and one.traffic.status == "fail" for one in rehearsals):
        raise VerdictError(
            "serving these requests takes more memory than the GPU has",
            hint="mmcalib run --gpu NAME tunes for them",
        )
