"""What run, scan and validate are asked."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from mmcalib.census.executor import TIMEOUT_S
from mmcalib.derive.policy import FIT, Prefer
from mmcalib.domain.shapes import MODALITIES, Modality
from mmcalib.errors import UsageError
from mmcalib.options.option import Bounds, Option, Options, Words

Data = Annotated[
    list[str | Path] | None,
    Option(
        metavar="SOURCE",
        help="Folder, file, 'pattern', archive or URL of media; @FILE or - reads paths; may be "
        "repeated.",
        words=Words(list[str]),
        basic=True,
    ),
]
Requests = Annotated[
    list[Path] | None,
    Option(
        metavar="FILE",
        help="JSONL of OpenAI chat requests with local media; may be repeated.",
        basic=True,
    ),
]
AllowedRoot = Annotated[
    Path | None,
    Option(
        metavar="DIR",
        help="Root below which requests may name files; default: their own folder.",
        wrong="{option} {given} is not a folder",
        hint="the folder below which requests may name files",
    ),
]
AllowedDomains = Annotated[
    list[str] | None,
    Option(
        metavar="HOST[,HOST]",
        help="Hosts from which media may be read, also by redirects; may be repeated.",
    ),
]
Out = Annotated[Path, Option(metavar="DIR", help="Folder for the results.", basic=True)]


Where = Literal["local", "ray"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeOptions(Options):
    """`workers` are processes here, or on every node of a Ray cluster; what they see is remembered
    below the cache folder, unless `no_cache`.
    """

    workers: Annotated[
        Annotated[int, Bounds(at_least=1)] | None,
        Option(
            metavar="N",
            help="Processes that read media; default: one per CPU.",
            wrong="{option} must be at least 1, not {given}",
            hint="--workers 4",
        ),
    ] = None
    item_timeout_s: Annotated[
        float,
        Bounds(above=0, below=math.inf),
        Option(
            spelled=("--item-timeout",),
            metavar="SECONDS",
            help="An item that takes longer to read is skipped.",
            wrong="{option} must be a number of seconds above 0",
            hint="--item-timeout 30",
        ),
    ] = TIMEOUT_S
    executor: Annotated[
        Where,
        Option(
            metavar="WHERE",
            help="Where media are read: local, or ray: the cluster of RAY_ADDRESS, or a new one.",
        ),
    ] = "local"
    no_cache: Annotated[
        bool, Option(help="Read every file, whether or not it was read before.")
    ] = False


PROBE = ProbeOptions()


Depth = Literal["budget", "startup", "replay"]

# Seconds that one profile and one replay may each take on this machine.
STARTUP_BUDGET_S = 90.0

StartupBudget = Annotated[
    float,
    Bounds(at_least=0, below=math.inf),
    Option(
        spelled=("--startup-budget",),
        metavar="SECONDS",
        help="What profile and replay may each take here.",
        wrong="{option} must be a number of seconds, 0 or more",
        hint="--startup-budget 90",
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofOptions(Options):
    """For a configuration that somebody wrote."""

    validate: Annotated[
        Depth, Option(metavar="HOW", help="How far to prove it: budget, startup or replay.")
    ] = "replay"
    startup_budget_s: StartupBudget = STARTUP_BUDGET_S


Validate = Literal["none", "budget", "startup", "replay"]
Device = Literal["cpu", "cuda"]

# Real items measured per modality: the extremes of each and a few more by chance.
SAMPLE_PER_MODALITY = 12

Positive = Annotated[int, Bounds(at_least=1)]
Share = Annotated[float, Bounds(above=0, at_most=1)]


def _cap(help: str, *, basic: bool = False) -> Option:  # noqa: A002 - as Typer has it
    """A number that may be left out."""
    return Option(
        metavar="N",
        help=help,
        wrong="{option} must be at least 1, not {given}",
        hint="{option} N, or leave it out",
        basic=basic,
    )


def _is_folder(root: Path | None) -> bool:
    return root is None or root.is_dir()


def _is_size(text: str) -> bool:
    from mmcalib.text import size_bytes

    return size_bytes(text) is not None


# Values as the command line says them: what cannot be read is a ValueError of the words.


def _counts(words: Sequence[str]) -> dict[Modality, int]:
    """`image=4 video=0`."""
    return dict(map(_count, words))


def _count(words: str) -> tuple[Modality, int]:
    modality, _, number = words.partition("=")
    if modality not in MODALITIES or not number.isdecimal():
        raise ValueError(words)
    return modality, int(number)


def _shares(words: Sequence[str]) -> float | dict[Modality, float]:
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
            raise ValueError(word)
        found[modality] = share
    return found


def _context(words: str) -> int | Literal["fit"]:
    """Tokens, or fit."""
    if words == FIT:
        return FIT
    try:
        return int(words)
    except ValueError:
        raise ValueError(words) from None


def _media_options(words: str) -> dict[str, dict[str, Any]]:
    """JSON of modality -> options, as `vllm serve --media-io-kwargs` takes it."""
    try:
        given = json.loads(words)
    except ValueError:
        given = None
    if not isinstance(given, dict) or any(
        modality not in MODALITIES or not isinstance(options, dict)
        for modality, options in given.items()
    ):
        raise ValueError(words)
    return given


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions(Options):
    """In the order of `mmcalib run --help`. None leaves a choice to the policy's default."""

    model: Annotated[
        str | None,
        Option(
            metavar="MODEL[,MODEL]",
            help="Checkpoint folder, or hub id such as `mmcalib list models` shows; of several, a "
            "comparison. Default: that of --config.",
            basic=True,
        ),
    ] = None
    config: Annotated[
        Path | None,
        Option(
            metavar="FILE",
            help="What you serve with today: vLLM's YAML, a Kubernetes manifest, a compose file, "
            "Helm values or a script.",
            basic=True,
        ),
    ] = None
    data: Data = None
    requests: Requests = None
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
                _counts,
                wrong="{option} {given}: not a modality and a number",
                hint="--count image=4",
            ),
            wrong="a count must not be negative",
            hint="--count image=4",
            basic=True,
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
                _shares,
                wrong="{option} {given} is not a share",
                hint="--coverage 0.99, or image=0.99",
            ),
            wrong="{option} {given} is not a share",
            hint="--coverage 0.99",
            basic=True,
        ),
    ] = None
    prefer: Annotated[
        Prefer | None,
        Option(
            metavar="WHAT",
            help="quality (default): downscale nothing unless context or memory force it. "
            "throughput: keep at least half of the items whole.",
            basic=True,
        ),
    ] = None
    max_tokens_per_item: Annotated[
        Positive | None,
        _cap(
            "Cap images, and pairs of video frames, at N tokens each; wins over --prefer.",
            basic=True,
        ),
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
                _context,
                wrong="{option} {given} is no number of tokens",
                hint="--max-model-len 32768, or fit",
            ),
            wrong="{option} must be at least 1, not {given}",
            hint="--max-model-len 32768, or fit",
            basic=True,
        ),
    ] = None
    max_num_batched_tokens: Annotated[
        Positive | None, _cap("Tokens per step; default: derived from vLLM's default.")
    ] = None
    concurrency: Annotated[
        Annotated[float, Bounds(above=0, below=math.inf)] | None,
        Option(
            metavar="N",
            help="Sequences of full context that the KV cache must hold; needs --gpu.",
            wrong="{option} must be a number above 0",
            hint="--concurrency 16",
            basic=True,
        ),
    ] = None
    ram_budget: Annotated[
        Annotated[str, Bounds(holds=_is_size)] | None,
        Option(
            metavar="SIZE",
            help="Host memory for vLLM's processor caches, as 8GiB.",
            wrong="{option} {given}: not a size",
            hint="--ram-budget 16GiB",
        ),
    ] = None
    media_io_kwargs: Annotated[
        dict[Modality, dict[str, Any]] | None,
        Option(
            metavar="JSON",
            help='What the server will load media with, such as \'{"video": {"fps": 1}}\'.',
            words=Words(
                str,
                _media_options,
                wrong="{option} {given}: not JSON of options per modality",
                hint="""--media-io-kwargs '{"video": {"fps": 1}}'""",
            ),
        ),
    ] = None
    allow_under_reserve: Annotated[
        bool,
        Option(help="Emit a configuration that may run out of memory under load."),
    ] = False
    validate: Annotated[
        Validate,
        Option(
            metavar="HOW",
            help="How far to prove it: none, budget, startup or replay.",
            basic=True,
        ),
    ] = "replay"
    startup_budget_s: StartupBudget = STARTUP_BUDGET_S
    device: Annotated[
        Device,
        Option(
            metavar="WHERE",
            help="Where the processor is measured: cpu, or cuda (there as well, and held against "
            "the CPU).",
        ),
    ] = "cpu"
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
            basic=True,
        ),
    ] = None
    pin_kv_cache: Annotated[
        bool,
        Option(
            help="Write the KV cache's bytes and the CUDA graphs' sizes that rehearsal leaves on "
            "--gpu: every start has the same.",
        ),
    ] = False

    def __post_init__(self) -> None:
        if not self.data and not self.requests:
            raise UsageError("nothing to calibrate for", hint="--data DIR or --requests FILE.jsonl")
