"""`mmcalib run`: the main job."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mmcalib.cli.completion import gpu_names, model_ids, one_of
from mmcalib.cli.emit import EmitToo
from mmcalib.cli.options import (
    AllowedRoot,
    AllowUrl,
    Data,
    ExecutorName,
    Force,
    ItemTimeout,
    NoCache,
    Out,
    Quiet,
    RayAddress,
    Requests,
    Strict,
    Verbose,
    Workers,
)
from mmcalib.cli.report import NoThumbnails, RedactPaths


def run(
    model: Annotated[
        str,
        typer.Option(
            metavar="MODEL",
            help="Checkpoint folder, or hub id such as `mmcalib models` lists.",
            autocompletion=model_ids,
        ),
    ],
    data: Data = None,
    requests: Requests = None,
    out: Out = Path("out"),
    allowed_local_media_path: AllowedRoot = None,
    allow_url: AllowUrl = False,
    count: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MODALITY=N", help="Items per prompt, such as image=4; may be repeated."
        ),
    ] = None,
    policy: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="YAML of the choices below, and of the GPU; options override it."
        ),
    ] = None,
    coverage: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SHARE",
            help="Share of requests whose item count is admitted, 1 by default; image=0.99 for "
            "one modality by itself; may be repeated.",
        ),
    ] = None,
    prefer: Annotated[
        str | None,
        typer.Option(
            metavar="WHAT",
            help="quality (default): downscale nothing unless context or memory force it. "
            "throughput: keep at least half of the items whole.",
            autocompletion=one_of("quality", "throughput"),
        ),
    ] = None,
    max_tokens_per_item: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Cap images, and pairs of video frames, at N tokens each; wins over --prefer.",
        ),
    ] = None,
    min_image_pixels: Annotated[
        int | None,
        typer.Option(metavar="N", help="Downscale no image below N pixels."),
    ] = None,
    min_video_frames: Annotated[
        int | None,
        typer.Option(metavar="N", help="Keep at least N frames of every video that has them."),
    ] = None,
    text_reserve_tokens: Annotated[
        int | None,
        typer.Option(metavar="N", help="Tokens kept for text and answer; default: 1024."),
    ] = None,
    max_model_len: Annotated[
        str | None,
        typer.Option(
            metavar="N",
            help="Context in tokens, or fit: the smallest that holds the covered requests; "
            "default: the model's own.",
        ),
    ] = None,
    max_num_batched_tokens: Annotated[
        int | None,
        typer.Option(metavar="N", help="Tokens per step; default: derived from vLLM's default."),
    ] = None,
    max_num_seqs: Annotated[
        int | None, typer.Option(metavar="N", help="Sequences per step; default: left to vLLM.")
    ] = None,
    gpu_memory_utilization: Annotated[
        float | None,
        typer.Option(metavar="SHARE", help="Share of the GPU that vLLM may use; default: vLLM's."),
    ] = None,
    concurrency: Annotated[
        float | None,
        typer.Option(
            metavar="N", help="Sequences of full context that the KV cache must hold; needs --gpu."
        ),
    ] = None,
    ram_budget: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Host memory for vLLM's processor caches, as 8GiB."),
    ] = None,
    media_io_kwargs: Annotated[
        str | None,
        typer.Option(
            metavar="JSON",
            help='What the server will load media with, such as \'{"video": {"fps": 1}}\'.',
        ),
    ] = None,
    allow_under_reserve: Annotated[
        bool,
        typer.Option(
            "--allow-under-reserve",
            help="Emit a configuration that may run out of memory under load.",
        ),
    ] = False,
    validate: Annotated[
        str,
        typer.Option(
            metavar="HOW",
            help="How far to prove it: none, budget, startup or replay.",
            autocompletion=one_of("none", "budget", "startup", "replay"),
        ),
    ] = "replay",
    startup_budget: Annotated[
        float,
        typer.Option(metavar="SECONDS", help="What profile and replay may each take here."),
    ] = 90.0,
    encoder_sweep: Annotated[
        bool,
        typer.Option(
            "--encoder-sweep",
            help="Measure the encoder's memory over sizes, within --startup-budget again.",
        ),
    ] = False,
    device: Annotated[
        str,
        typer.Option(
            metavar="WHERE",
            help="Where the processor is measured: cpu, cuda (there as well, and held against "
            "the CPU) or auto (cuda where it can).",
            autocompletion=one_of("auto", "cpu", "cuda"),
        ),
    ] = "auto",
    sample: Annotated[
        int,
        typer.Option(
            metavar="N", help="Real items measured per modality; others by blank stand-ins."
        ),
    ] = 12,
    gpu: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="GPU that will serve, such as H100-80G: its memory is rehearsed. "
            "Default: the present one, if any.",
            autocompletion=gpu_names,
        ),
    ] = None,
    seed: Annotated[int, typer.Option(metavar="N", help="Seed for choosing the sample.")] = 0,
    emit: EmitToo = None,
    no_thumbnails: NoThumbnails = False,
    redact_paths: RedactPaths = False,
    workers: Workers = None,
    item_timeout: ItemTimeout = 30.0,
    executor: ExecutorName = "local",
    ray_address: RayAddress = None,
    no_cache: NoCache = False,
    strict: Strict = False,
    force: Force = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print calibration.json to standard output.")
    ] = False,
    verbose: Verbose = False,
    quiet: Quiet = False,
) -> None:
    """Calibrate vLLM for a corpus: measure, derive, write a config and prove it.

    Example: mmcalib run --model Qwen/Qwen2.5-VL-3B-Instruct --data ./media --out ./out
    """
    import sys

    from rich.console import Console

    from mmcalib.cli.output import claim, finish, save
    from mmcalib.cli.probe_options import probe_options_of
    from mmcalib.cli.progress import Terminal
    from mmcalib.cli.run_options import job_of
    from mmcalib.job.calibration.run import run as run_job
    from mmcalib.job.spec import Outcome
    from mmcalib.progress import Silent

    job = job_of(
        model=model,
        data=data or [],
        requests=requests or [],
        allowed_root=allowed_local_media_path,
        allow_url=allow_url,
        probe=probe_options_of(
            executor=executor,
            workers=workers,
            item_timeout=item_timeout,
            ray_address=ray_address,
            no_cache=no_cache,
        ),
        policy=policy,
        count=count or [],
        coverage=coverage,
        prefer=prefer,
        max_tokens_per_item=max_tokens_per_item,
        min_image_pixels=min_image_pixels,
        min_video_frames=min_video_frames,
        text_reserve_tokens=text_reserve_tokens,
        max_model_len=max_model_len,
        max_num_batched_tokens=max_num_batched_tokens,
        max_num_seqs=max_num_seqs,
        gpu_memory_utilization=gpu_memory_utilization,
        concurrency=concurrency,
        ram_budget=ram_budget,
        media_io_kwargs=media_io_kwargs,
        allow_under_reserve=allow_under_reserve,
        validate=validate,
        startup_budget_s=startup_budget,
        encoder_sweep=encoder_sweep,
        device=device,
        sample=sample,
        seed=seed,
        gpu=gpu,
    )
    claim(out, force=force)
    console = Console(stderr=True, highlight=False)
    outcome = Outcome(on_change=lambda so_far: save(so_far, out))
    try:
        calibration = run_job(
            job, outcome, Silent() if quiet else Terminal(console, verbose=verbose)
        )
    except KeyboardInterrupt:
        if outcome.skipped or outcome.calibration:
            console.print(f"interrupted; what was found so far is in {out}", markup=False)
        raise
    finish(
        calibration,
        out,
        console,
        as_json=as_json,
        quiet=quiet,
        strict=strict,
        thumbnails=not no_thumbnails,
        redact_paths=redact_paths,
        emit=emit or [],
        command=sys.argv[1:],
    )
