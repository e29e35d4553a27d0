"""What run, scan and validate are asked; options that other commands share with them."""

import json
import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from mmcalib.census.executor import TIMEOUT_S
from mmcalib.derive.policy import FIT, Prefer
from mmcalib.domain.shapes import MODALITIES, Modality
from mmcalib.errors import UsageError
from mmcalib.options.option import Bounds, option, options, switch
from mmcalib.text import size_bytes

Where = Literal["local", "ray"]
Depth = Literal["budget", "startup", "replay"]
Validate = Literal["none", "budget", "startup", "replay"]
Device = Literal["cpu", "cuda"]
Positive = Annotated[int, Bounds(ge=1)]
Seconds = Annotated[float, Bounds(ge=0, lt=math.inf)]
Share = Annotated[float, Bounds(gt=0, le=1)]
Size = Annotated[str, Bounds(holds=lambda text: size_bytes(text) is not None)]

# Seconds that one profile and one replay may each take on this machine.
STARTUP_BUDGET_S = 90.0
# Real items measured per modality: the extremes of each and a few more by chance.
SAMPLE_PER_MODALITY = 12


# Options that several commands have.

DATA = option(
    "SOURCE",
    "Folder, file, 'pattern', archive or URL of media; @FILE or - reads paths; may be repeated.",
    words_type=list[str],
    basic=True,
)
REQUESTS = option(
    "FILE", "JSONL of OpenAI chat requests with local media; may be repeated.", basic=True
)
ALLOWED_ROOT = option(
    "DIR",
    "Root below which requests may name files; default: their own folder.",
    wrong="{option} {given} is not a folder",
    hint="the folder below which requests may name files",
)
ALLOWED_DOMAINS = option(
    "HOST[,HOST]", "Hosts from which media may be read, also by redirects; may be repeated."
)
STARTUP_BUDGET = option(
    "SECONDS",
    "What profile and replay may each take here.",
    STARTUP_BUDGET_S,
    spelled=("--startup-budget",),
    wrong="{option} must be a number of seconds, 0 or more",
    hint="--startup-budget 90",
)

# Of at least 1, or left out.
count_option = partial(
    option,
    "N",
    wrong="{option} must be at least 1, not {given}",
    hint="{option} N, or leave it out",
)


@options
class ProbeOptions:
    """`workers` are processes here, or on every node of a Ray cluster; what they see is remembered
    below the cache folder, unless `no_cache`.
    """

    workers: Positive | None = count_option(
        "Processes that read media; default: one per CPU.", hint="--workers 4"
    )
    item_timeout_s: Annotated[float, Bounds(gt=0, lt=math.inf)] = option(
        "SECONDS",
        "An item that takes longer to read is skipped.",
        TIMEOUT_S,
        spelled=("--item-timeout",),
        wrong="{option} must be a number of seconds above 0",
        hint="--item-timeout 30",
    )
    executor: Where = option(
        "WHERE",
        "Where media are read: local, or ray: the cluster of RAY_ADDRESS, or a new one.",
        "local",
    )
    no_cache: bool = switch("Read every file, whether or not it was read before.")


PROBE = ProbeOptions()


@options
class ProofOptions:
    """For a configuration that somebody wrote."""

    validate: Depth = option("HOW", "How far to prove it: budget, startup or replay.", "replay")
    startup_budget_s: Seconds = STARTUP_BUDGET


def _read_counts(words: Sequence[str]) -> dict[Modality, int]:
    """`image=4 video=0`."""
    found: dict[Modality, int] = {}
    for word in words:
        modality, _, number = word.partition("=")
        if modality not in MODALITIES or not number.isdecimal():
            raise UsageError(f"--count {word}: not a modality and a number", hint="--count image=4")
        found[modality] = int(number)
    return found


def _read_shares(words: Sequence[str]) -> float | dict[Modality, float]:
    """One share for all modalities together, or one for each."""
    found: dict[Modality, float] = {}
    for word in words:
        modality, _, number = word.rpartition("=")
        try:
            share = float(number)
        except ValueError:
            share = math.nan
        if not modality and len(words) == 1 and not math.isnan(share):
            return share
        if modality not in MODALITIES or math.isnan(share):
            raise UsageError(
                f"--coverage {word} is not a share", hint="--coverage 0.99, or image=0.99"
            )
        found[modality] = share
    return found


def _read_context(words: str) -> int | Literal["fit"]:
    try:
        return FIT if words == FIT else int(words)
    except ValueError:
        raise UsageError(
            f"--max-model-len {words} is no number of tokens", hint="--max-model-len 32768, or fit"
        ) from None


def _read_media_options(words: str) -> dict[str, dict[str, Any]]:
    """JSON of modality -> options, as `vllm serve --media-io-kwargs` takes it."""
    try:
        given = json.loads(words)
    except ValueError:
        given = None
    if not isinstance(given, dict) or any(
        modality not in MODALITIES or not isinstance(options, dict)
        for modality, options in given.items()
    ):
        raise UsageError(
            f"--media-io-kwargs {words}: not JSON of options per modality",
            hint="""--media-io-kwargs '{"video": {"fps": 1}}'""",
        )
    return given


@options
class RunOptions:
    """In the order of `mmcalib run --help`. None leaves a choice to the policy's default."""

    model: str | None = option(
        "MODEL[,MODEL]",
        "Checkpoint folder, or hub id such as `mmcalib list models` shows; of several, a "
        "comparison. Default: that of --config.",
        basic=True,
    )
    config: Path | None = option(
        "FILE",
        "What you serve with today: vLLM's YAML, a Kubernetes manifest, a compose file, Helm "
        "values or a script.",
        basic=True,
    )
    data: list[str | Path] | None = DATA
    requests: list[Path] | None = REQUESTS
    out: Path = option("DIR", "Folder for the results.", Path("out"), basic=True)
    allowed_local_media_path: Annotated[Path, Bounds(holds=Path.is_dir)] | None = ALLOWED_ROOT
    allowed_media_domains: list[str] | None = ALLOWED_DOMAINS
    count: dict[Modality, Annotated[int, Bounds(ge=0)]] | None = option(
        "MODALITY=N",
        "Items per prompt, such as image=4; may be repeated.",
        words_type=list[str],
        read=_read_counts,
        wrong="a count must not be negative",
        hint="--count image=4",
        basic=True,
    )
    coverage: Share | dict[Modality, Share] | None = option(
        "SHARE",
        "Share of requests whose item count is admitted, 1 by default; image=0.99 for one modality "
        "by itself; may be repeated.",
        words_type=list[str],
        read=_read_shares,
        wrong="{option} {given} is not a share",
        hint="--coverage 0.99",
        basic=True,
    )
    prefer: Prefer | None = option(
        "WHAT",
        "quality (default): downscale nothing unless context or memory force it. throughput: keep "
        "at least half of the items whole.",
        basic=True,
    )
    max_tokens_per_item: Positive | None = count_option(
        "Cap images, and pairs of video frames, at N tokens each; wins over --prefer.", basic=True
    )
    min_image_pixels: Positive | None = count_option("Downscale no image below N pixels.")
    min_video_frames: Positive | None = count_option(
        "Keep at least N frames of every video that has them."
    )
    text_reserve_tokens: Annotated[int, Bounds(ge=0)] | None = option(
        "N",
        "Tokens kept for text and answer; default: 1024.",
        wrong="{option} must not be negative",
        hint="--text-reserve-tokens 1024",
    )
    max_model_len: Positive | Literal["fit"] | None = option(
        "N",
        "Context in tokens, or fit: the smallest that holds the covered requests; default: the "
        "model's own.",
        words_type=str,
        read=_read_context,
        wrong="{option} must be at least 1, not {given}",
        hint="--max-model-len 32768, or fit",
        basic=True,
    )
    max_num_batched_tokens: Positive | None = count_option(
        "Tokens per step; default: derived from vLLM's default."
    )
    concurrency: Annotated[float, Bounds(gt=0, lt=math.inf)] | None = option(
        "N",
        "Sequences of full context that the KV cache must hold; needs --gpu.",
        wrong="{option} must be a number above 0",
        hint="--concurrency 16",
        basic=True,
    )
    ram_budget: Size | None = option(
        "SIZE",
        "Host memory for vLLM's processor caches, as 8GiB.",
        wrong="{option} {given}: not a size",
        hint="--ram-budget 16GiB",
    )
    media_io_kwargs: dict[Modality, dict[str, Any]] | None = option(
        "JSON",
        """What the server will load media with, such as '{"video": {"fps": 1}}'.""",
        words_type=str,
        read=_read_media_options,
    )
    allow_under_reserve: bool = switch(
        "Emit a configuration that may run out of memory under load."
    )
    validate: Validate = option(
        "HOW", "How far to prove it: none, budget, startup or replay.", "replay", basic=True
    )
    startup_budget_s: Seconds = STARTUP_BUDGET
    device: Device = option(
        "WHERE",
        "Where the processor is measured: cpu, or cuda (there as well, and held against the CPU).",
        "cpu",
    )
    sample: Positive = option(
        "N",
        "Real items measured per modality; others by blank stand-ins.",
        SAMPLE_PER_MODALITY,
        wrong="{option} must be at least 1: the heaviest item is always measured",
        hint="--sample 12",
    )
    gpu: str | None = option(
        "NAME[,NAME]",
        "GPU that will serve, such as H100-80G: its memory is rehearsed; of several, a comparison. "
        "Default: the present one, if any.",
        basic=True,
    )
    pin_kv_cache: bool = switch(
        "Write the KV cache's bytes and the CUDA graphs' sizes that rehearsal leaves on --gpu: "
        "every start has the same."
    )

    def __post_init__(self) -> None:
        if not self.data and not self.requests:
            raise UsageError("nothing to calibrate for", hint="--data DIR or --requests FILE.jsonl")
