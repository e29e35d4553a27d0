"""`mmcalib run`: the main job."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def run(
    model: Annotated[
        str, typer.Option(help="Local checkpoint folder or hub id, such as in `mmcalib models`.")
    ],
    data: Annotated[
        list[Path] | None, typer.Option(help="Folder (or file) of media; may be repeated.")
    ] = None,
    requests: Annotated[
        list[Path] | None,
        typer.Option(help="JSONL of OpenAI chat requests with local media; may be repeated."),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for the results.")] = Path("out"),
    allowed_local_media_path: Annotated[
        Path | None,
        typer.Option(help="Root below which requests may name files; default: their own folder."),
    ] = None,
    count: Annotated[
        list[str] | None,
        typer.Option(help="Items per prompt, such as image=4; may be repeated."),
    ] = None,
    coverage: Annotated[
        float, typer.Option(help="Share of requests whose item count must be admitted.")
    ] = 1.0,
    prefer: Annotated[
        str, typer.Option(help="quality: downscale nothing. throughput: at most half of the items.")
    ] = "quality",
    max_tokens_per_item: Annotated[
        int | None, typer.Option(help="Cap every image and video frame at this many tokens.")
    ] = None,
    text_reserve_tokens: Annotated[
        int | None, typer.Option(help="Tokens kept for text and answer.  [default: 1024]")
    ] = None,
    max_model_len: Annotated[
        int | None, typer.Option(help="Context in tokens; default: the model's own.")
    ] = None,
    max_num_batched_tokens: Annotated[
        int | None, typer.Option(help="Tokens per step; default: derived.")
    ] = None,
    max_num_seqs: Annotated[
        int | None, typer.Option(help="Sequences per step; default: vLLM's.")
    ] = None,
    allow_under_reserve: Annotated[
        bool, typer.Option(help="Emit a configuration that may run out of memory under load.")
    ] = False,
    validate: Annotated[
        str, typer.Option(help="How far to prove it: none, budget, startup or replay.")
    ] = "replay",
    startup_budget: Annotated[
        float, typer.Option(help="Seconds that profile and replay may each take here.")
    ] = 60.0,
    sample: Annotated[
        int, typer.Option(help="Real items measured per modality; others by blank stand-ins.")
    ] = 12,
    seed: Annotated[int, typer.Option(help="Seed for choosing the sample.")] = 0,
    strict: Annotated[bool, typer.Option(help="Exit 3 when anything had to be skipped.")] = False,
    force: Annotated[bool, typer.Option(help="Overwrite results in --out.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print calibration.json.")] = False,
    quiet: Annotated[bool, typer.Option(help="No progress and no summary.")] = False,
) -> None:
    """Calibrate vLLM for a corpus: measure, derive, write a config and prove it.

    Example: mmcalib run --model Qwen/Qwen2.5-VL-3B-Instruct --data ./media --out ./out
    """
    from rich.console import Console

    from mmcalib.cli.options import job_of
    from mmcalib.cli.output import claim, finish, save
    from mmcalib.cli.progress import Terminal
    from mmcalib.job.run import Outcome
    from mmcalib.job.run import run as run_job
    from mmcalib.progress import Silent

    job = job_of(
        model=model,
        data=data or [],
        requests=requests or [],
        allowed_root=allowed_local_media_path,
        count=count or [],
        coverage=coverage,
        prefer=prefer,
        max_tokens_per_item=max_tokens_per_item,
        text_reserve_tokens=text_reserve_tokens,
        max_model_len=max_model_len,
        max_num_batched_tokens=max_num_batched_tokens,
        max_num_seqs=max_num_seqs,
        allow_under_reserve=allow_under_reserve,
        validate=validate,
        startup_budget_s=startup_budget,
        sample=sample,
        seed=seed,
    )
    claim(out, force=force)
    console = Console(stderr=True, highlight=False)
    outcome = Outcome(on_change=lambda so_far: save(so_far, out))
    try:
        calibration = run_job(job, outcome, Silent() if quiet else Terminal(console))
    except KeyboardInterrupt:
        if outcome.skipped or outcome.calibration:
            console.print(f"interrupted; what was found so far is in {out}", markup=False)
        raise
    finish(calibration, out, console, as_json=as_json, quiet=quiet, strict=strict)
