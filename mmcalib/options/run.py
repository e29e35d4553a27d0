"""What `mmcalib run` and `mmcalib.calibrate` are asked; a policy file says what is `in_policy`."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from mmcalib.derive.policy import Prefer
from mmcalib.domain.shapes import Modality
from mmcalib.domain.traffic import TRIALS
from mmcalib.errors import UsageError
from mmcalib.options import words
from mmcalib.options.bounds import Bounds
from mmcalib.options.completion import gpu_names, model_ids
from mmcalib.options.corpus import AllowedDomains, AllowedRoot, CensusFiles, Data, Out, Requests
from mmcalib.options.option import Option, Options, Words, options_of
from mmcalib.options.validate import STARTUP_BUDGET_S, StartupBudget

Validate = Literal["none", "budget", "startup", "replay"]
Device = Literal["auto", "cpu", "cuda"]

# Real items measured per modality: the extremes of each and a few more by chance.
SAMPLE_PER_MODALITY = 12

Positive = Annotated[int, Bounds(at_least=1)]
Share = Annotated[float, Bounds(above=0, at_most=1)]


def _cap(help: str) -> Option:  # noqa: A002 - as Typer has it
    """A number that may be left out."""
    return Option(
        metavar="N",
        help=help,
        wrong="{option} must be at least 1, not {given}",
        hint="{option} N, or leave it out",
        in_policy=True,
    )


def _is_folder(root: Path | None) -> bool:
    return root is None or root.is_dir()


def _is_size(text: str) -> bool:
    from mmcalib.sizes import size_bytes

    return size_bytes(text) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions(Options):
    """In the order of `mmcalib run --help`. None leaves a choice to the policy, and that to us."""

    model: Annotated[
        str | None,
        Option(
            metavar="MODEL[,MODEL]",
            help="Checkpoint folder, or hub id such as `mmcalib models` lists; of several, a "
            "comparison. Default: that of --config.",
            offers=model_ids,
        ),
    ] = None
    config: Annotated[
        Path | None,
        Option(
            metavar="FILE",
            help="What you serve with today: vLLM's YAML, a Kubernetes manifest, a compose file, "
            "Helm values or a script.",
        ),
    ] = None
    data: Data = None
    requests: Requests = None
    census: CensusFiles = None
    out: Out = Path("out")
    allowed_local_media_path: Annotated[AllowedRoot, Bounds(holds=_is_folder)] = None
    allowed_media_domains: AllowedDomains = None
    count: Annotated[
        dict[Modality, Annotated[int, Bounds(at_least=0)]] | None,
        Option(
            metavar="MODALITY=N",
            help="Items per prompt, such as image=4; may be repeated.",
            words=Words(
                list[str],
                words.counts,
                wrong="{option} {given}: not a modality and a number",
                hint="--count image=4",
            ),
            wrong="a count must not be negative",
            hint="--count image=4",
            in_policy=True,
        ),
    ] = None
    policy: Annotated[
        Path | None,
        Option(
            metavar="FILE", help="YAML of the choices below, and of the GPU; options override it."
        ),
    ] = None
    coverage: Annotated[
        Share | dict[Modality, Share] | None,
        Option(
            metavar="SHARE",
            help="Share of requests whose item count is admitted, 1 by default; image=0.99 for "
            "one modality by itself; may be repeated.",
            words=Words(
                list[str],
                words.shares,
                wrong="{option} {given} is not a share",
                hint="--coverage 0.99, or image=0.99",
            ),
            wrong="{option} {given} is not a share",
            hint="--coverage 0.99",
            in_policy=True,
        ),
    ] = None
    prefer: Annotated[
        Prefer | None,
        Option(
            metavar="WHAT",
            help="quality (default): downscale nothing unless context or memory force it. "
            "throughput: keep at least half of the items whole.",
            in_policy=True,
        ),
    ] = None
    max_tokens_per_item: Annotated[
        Positive | None,
        _cap("Cap images, and pairs of video frames, at N tokens each; wins over --prefer."),
    ] = None
    min_image_pixels: Annotated[Positive | None, _cap("Downscale no image below N pixels.")] = None
    min_video_frames: Annotated[
        Positive | None, _cap("Keep at least N frames of every video that has them.")
    ] = None
    text_reserve_tokens: Annotated[
        Annotated[int, Bounds(at_least=0)] | None,
        Option(
            metavar="N",
            help="Tokens kept for text and answer; default: 1024.",
            wrong="{option} must not be negative",
            hint="--text-reserve-tokens 1024",
            in_policy=True,
        ),
    ] = None
    max_model_len: Annotated[
        Positive | Literal["fit"] | None,
        Option(
            metavar="N",
            help="Context in tokens, or fit: the smallest that holds the covered requests; "
            "default: the model's own.",
            words=Words(
                str,
                words.context,
                wrong="{option} {given} is no number of tokens",
                hint="--max-model-len 32768, or fit",
            ),
            wrong="{option} must be at least 1, not {given}",
            hint="--max-model-len 32768, or fit",
            in_policy=True,
        ),
    ] = None
    max_num_batched_tokens: Annotated[
        Positive | None, _cap("Tokens per step; default: derived from vLLM's default.")
    ] = None
    max_num_seqs: Annotated[Positive | None, _cap("Sequences per step; default: left to vLLM.")] = (
        None
    )
    gpu_memory_utilization: Annotated[
        Share | None,
        Option(
            metavar="SHARE",
            help="Share of the GPU that vLLM may use; default: vLLM's.",
            wrong="{option} {given} is not a share",
            hint="--gpu-memory-utilization 0.9",
            in_policy=True,
        ),
    ] = None
    concurrency: Annotated[
        Annotated[float, Bounds(above=0, below=math.inf)] | None,
        Option(
            metavar="N",
            help="Sequences of full context that the KV cache must hold; needs --gpu.",
            wrong="{option} must be a number above 0",
            hint="--concurrency 16",
            in_policy=True,
        ),
    ] = None
    ram_budget: Annotated[
        Annotated[str, Bounds(holds=_is_size)] | None,
        Option(
            metavar="SIZE",
            help="Host memory for vLLM's processor caches, as 8GiB.",
            wrong="{option} {given}: not a size",
            hint="--ram-budget 16GiB",
            in_policy=True,
        ),
    ] = None
    media_io_kwargs: Annotated[
        dict[Modality, dict[str, Any]] | None,
        Option(
            metavar="JSON",
            help='What the server will load media with, such as \'{"video": {"fps": 1}}\'.',
            words=Words(
                str,
                words.media_options,
                wrong="{option} {given}: not JSON of options per modality",
                hint="""--media-io-kwargs '{"video": {"fps": 1}}'""",
            ),
            in_policy=True,
        ),
    ] = None
    allow_under_reserve: Annotated[
        bool,
        Option(help="Emit a configuration that may run out of memory under load.", in_policy=True),
    ] = False
    validate: Annotated[
        Validate,
        Option(metavar="HOW", help="How far to prove it: none, budget, startup or replay."),
    ] = "replay"
    startup_budget_s: StartupBudget = STARTUP_BUDGET_S
    encoder_sweep: Annotated[
        bool,
        Option(help="Measure the encoder's memory over sizes, within --startup-budget again."),
    ] = False
    device: Annotated[
        Device,
        Option(
            metavar="WHERE",
            help="Where the processor is measured: cpu, cuda (there as well, and held against "
            "the CPU) or auto (cuda where it can).",
        ),
    ] = "auto"
    sample: Annotated[
        Positive,
        Option(
            metavar="N",
            help="Real items measured per modality; others by blank stand-ins.",
            wrong="{option} must be at least 1: the heaviest item is always measured",
            hint="--sample 12",
        ),
    ] = SAMPLE_PER_MODALITY
    gpu: Annotated[
        str | None,
        Option(
            metavar="NAME[,NAME]",
            help="GPU that will serve, such as H100-80G: its memory is rehearsed; of several, a "
            "comparison. Default: the present one, if any.",
            offers=gpu_names,
            in_policy=True,
        ),
    ] = None
    worst_order: Annotated[
        Path | None,
        Option(
            metavar="FILE",
            help="Look for the order of the corpus' items that takes most on --gpu, and write it "
            "there.",
        ),
    ] = None
    trials: Annotated[
        Positive,
        Option(
            metavar="N",
            help="Orders that the search for it judges.",
            wrong="{option} must be at least 1, not {given}",
            hint="--trials 60",
        ),
    ] = TRIALS
    serve_choices: Annotated[
        bool,
        Option(
            help="Serve the requests on --gpu with other batches and caps, too: steps, waits and "
            "memory of each.",
        ),
    ] = False
    pin_kv_cache: Annotated[
        bool,
        Option(
            help="Write the KV cache's bytes and the CUDA graphs' sizes that rehearsal leaves on "
            "--gpu: every start has the same.",
        ),
    ] = False
    seed: Annotated[
        int, Option(metavar="N", help="Seed for choosing the sample, and of --worst-order.")
    ] = 0

    @classmethod
    def of_words(cls, given: Mapping[str, Any]) -> "RunOptions":
        """What the command line says, and below it the policy file that it names."""
        from mmcalib.options.checked import checked, from_words
        from mmcalib.options.policy_file import read_policy

        said = from_words(options_of(cls), given)
        below = read_policy(said["policy"]) if "policy" in said else {}
        merged = {**below, **said}
        if "count" in said:
            merged["count"] = {**below.get("count", {}), **said["count"]}
        return checked(cls, merged)

    def __post_init__(self) -> None:
        if self.census and (self.data or self.requests):
            raise UsageError(
                "--census is a corpus that was read before, --data and --requests are read now",
                hint="scan those, too: mmcalib scan --data DIR --out MORE, then --census MORE",
            )
        if not self.data and not self.requests and not self.census:
            raise UsageError("nothing to calibrate for", hint="--data DIR or --requests FILE.jsonl")
        if self.trials != TRIALS and self.worst_order is None:
            raise UsageError("--trials needs --worst-order", hint="--worst-order worst.jsonl")
