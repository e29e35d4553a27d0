"""Options of `run`, and those it shares with scan, validate and other commands."""

import difflib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from mmcalib.census.executor import TIMEOUT_S
from mmcalib.domain.shapes import MODALITIES, Modality
from mmcalib.errors import UsageError
from mmcalib.limits.policy import FIT, Policy, Prefer
from mmcalib.options.option import Bounds, option, options, switch
from mmcalib.text import flag, size_bytes

Where = Literal["local", "ray"]
Depth = Literal["budget", "startup", "replay"]
Validate = Literal["none", "budget", "startup", "replay"]
Device = Literal["cpu", "cuda"]
Positive = Annotated[int, Bounds(ge=1)]
Seconds = Annotated[float, Bounds(ge=0, lt=math.inf)]
Share = Annotated[float, Bounds(gt=0, le=1)]
Size = Annotated[str, Bounds(holds=lambda text: size_bytes(text) is not None)]

STARTUP_BUDGET_S = 90.0
# The extremes of each modality and a few random items.
SAMPLE_PER_MODALITY = 12

DATA = option(
    "SOURCE",
    "Media: folder, file, 'pattern', archive, URL or size:WxH; @FILE or - reads paths; may be "
    "repeated.",
    words_type=list[str],
    basic=True,
)
REQUESTS = option(
    "FILE", "OpenAI chat requests with local media, as JSONL; may be repeated.", basic=True
)
ALLOWED_ROOT = option(
    "DIR",
    "Folder that requests may read files from; default: that of the requests file.",
    wrong="{option} {given} is not a folder",
    hint="the folder that requests may read files from",
)
ALLOWED_DOMAINS = option(
    "HOST[,HOST]", "Hosts to read media from, redirects included; may be repeated."
)
STARTUP_BUDGET = option(
    "SECONDS",
    "Time limit in seconds for the startup profile, and again for the replay.",
    STARTUP_BUDGET_S,
    spelled=("--startup-budget",),
    wrong="{option} must be a number of seconds, 0 or more",
    hint="--startup-budget 90",
)

# An optional integer of at least 1.
count_option = partial(
    option,
    "N",
    wrong="{option} must be at least 1, not {given}",
    hint="{option} N, or leave it out",
)


@options
class ProbeOptions:
    """How media are read. Headers are cached in the cache folder unless `no_cache` is set."""

    workers: Positive | None = count_option(
        "Processes that read media, on each node with ray; default: one per CPU.",
        hint="--workers 4",
    )
    item_timeout_s: Annotated[float, Bounds(gt=0, lt=math.inf)] = option(
        "SECONDS",
        "Skip an item that takes longer to read.",
        TIMEOUT_S,
        spelled=("--item-timeout",),
        wrong="{option} must be a number of seconds above 0",
        hint="--item-timeout 30",
    )
    executor: Where = option(
        "WHERE",
        "Where to read media: local, or ray (the cluster of RAY_ADDRESS, or a new one).",
        "local",
    )
    no_cache: bool = switch("Ignore cached results; read every file again.")


PROBE = ProbeOptions()


@options
class ProofOptions:
    """Validation of an existing configuration."""

    validate: Depth = option("HOW", "Validation depth: budget, startup or replay.", "replay")
    startup_budget_s: Seconds = STARTUP_BUDGET


def _read_counts(words: Sequence[str]) -> dict[Modality, int]:
    """Parse `image=4 video=0`."""
    counts: dict[Modality, int] = {}
    for word in words:
        modality, _, number = word.partition("=")
        if modality not in MODALITIES or not number.isdecimal():
            raise UsageError(f"--count {word} is not MODALITY=N", hint="--count image=4")
        counts[modality] = int(number)
    return counts


def _read_shares(words: Sequence[str]) -> float | dict[Modality, float]:
    """Parse one share for all modalities together, or one per modality."""
    shares: dict[Modality, float] = {}
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
        shares[modality] = share
    return shares


def _read_context(words: str) -> int | Literal["fit"]:
    try:
        return FIT if words == FIT else int(words)
    except ValueError:
        raise UsageError(
            f"--max-model-len {words} is not a token count", hint="--max-model-len 32768, or fit"
        ) from None


def _read_media_options(words: str) -> dict[str, dict[str, Any]]:
    """Parse JSON of modality -> options, as in `vllm serve --media-io-kwargs`."""
    try:
        kwargs = json.loads(words)
    except ValueError:
        kwargs = None
    if not isinstance(kwargs, dict) or any(
        modality not in MODALITIES or not isinstance(options, dict)
        for modality, options in kwargs.items()
    ):
        raise UsageError(
            f"--media-io-kwargs {words} is not JSON with options per modality",
            hint="""--media-io-kwargs '{"video": {"fps": 1}}'""",
        )
    return kwargs


@options
class RunOptions:
    """In the order of `mmcalib run --help`. None means the policy's default."""

    model: str | None = option(
        "MODEL[,MODEL]",
        "Checkpoint folder or hub id (`mmcalib list models` shows some); several are compared. "
        "Default: the model of --config.",
        basic=True,
    )
    config: Path | None = option(
        "FILE",
        "Your configuration: vLLM's YAML, manifest, compose file, chart, script or program.",
        basic=True,
    )
    data: list[str | Path] | None = DATA
    requests: list[Path] | None = REQUESTS
    out: Path = option("DIR", "Folder for the results.", Path("out"), basic=True)
    allowed_local_media_path: Annotated[Path, Bounds(holds=Path.is_dir)] | None = ALLOWED_ROOT
    allowed_media_domains: list[str] | None = ALLOWED_DOMAINS
    count: dict[Modality, Annotated[int, Bounds(ge=0)]] | None = option(
        "MODALITY=N",
        "Items allowed per prompt, or in a whole chat, such as image=4; may be repeated.",
        spelled=("--count", "--conversation"),
        words_type=list[str],
        read=_read_counts,
        wrong="{option}: {given} is not a modality, or not a count",
        hint="--count image=4",
        basic=True,
    )
    coverage: Share | dict[Modality, Share] | None = option(
        "SHARE",
        "Share of requests whose item count must fit; default: 1. image=0.99 sets one modality; "
        "may be repeated.",
        words_type=list[str],
        read=_read_shares,
        wrong="{option} {given} is not a share",
        hint="--coverage 0.99",
        basic=True,
    )
    prefer: Prefer | None = option(
        "WHAT",
        "quality (default): downscale only if context or memory require it. throughput: keep at "
        "least half of the items at full size. detail: raise the model's limit until nothing "
        "shrinks.",
        basic=True,
    )
    max_tokens_per_item: Positive | None = count_option(
        "Cap each image, and each pair of video frames, at N tokens; overrides --prefer.",
        basic=True,
    )
    min_image_pixels: Positive | None = count_option("Downscale no image below N pixels.")
    min_video_frames: Positive | None = count_option(
        "Keep at least N frames of every video (shorter ones keep all)."
    )
    text_reserve_tokens: Annotated[int, Bounds(ge=0)] | None = option(
        "N",
        "Tokens reserved for text and answer; default: 1024.",
        wrong="{option} must not be negative",
        hint="--text-reserve-tokens 1024",
    )
    max_model_len: Positive | Literal["fit"] | None = option(
        "N",
        "Context in tokens, or fit: the smallest that holds the covered requests; default: the "
        "model's maximum.",
        words_type=str,
        read=_read_context,
        wrong="{option} must be at least 1, not {given}",
        hint="--max-model-len 32768, or fit",
        basic=True,
    )
    max_num_batched_tokens: Positive | None = count_option(
        "Tokens per scheduler step; default: derived from vLLM's default."
    )
    concurrency: Annotated[float, Bounds(gt=0, lt=math.inf)] | None = option(
        "N",
        "Full-context requests that the KV cache must hold at once; needs --gpu.",
        wrong="{option} must be a number above 0",
        hint="--concurrency 16",
        basic=True,
    )
    ram_budget: Size | None = option(
        "SIZE",
        "Host memory for vLLM's processor caches, such as 8GiB.",
        wrong="{option} {given} is not a size",
        hint="--ram-budget 16GiB",
    )
    media_io_kwargs: dict[Modality, dict[str, Any]] | None = option(
        "JSON",
        """Media loading options of the server, such as '{"video": {"fps": 1}}'.""",
        words_type=str,
        read=_read_media_options,
    )
    allow_under_reserve: bool = switch(
        "Write the configuration even if it may run out of memory under load."
    )
    validate: Validate = option(
        "HOW", "Validation depth: none, budget, startup or replay.", "replay", basic=True
    )
    startup_budget_s: Seconds = STARTUP_BUDGET
    device: Device = option(
        "WHERE",
        "Where to measure the processor: cpu, or cuda (also on the GPU, compared with the CPU).",
        "cpu",
    )
    sample: Positive = option(
        "N",
        "Real items to measure per modality; blank items of the same size replace the rest.",
        SAMPLE_PER_MODALITY,
        wrong="{option} must be at least 1: the heaviest item is always measured",
        hint="--sample 12",
    )
    gpu: str | None = option(
        "NAME[=PRICE/h][,NAME]",
        "GPU to serve on, such as H100-80G; mmcalib rehearses its memory. Several are compared, "
        "also by price with =0.80/h. Default: this machine's, if any.",
        basic=True,
    )
    pin_kv_cache: bool = switch(
        "Fix the KV cache size and the CUDA graph sizes to those rehearsed for --gpu, so that "
        "every start has the same."
    )

    def __post_init__(self) -> None:
        if not self.data and not self.requests:
            raise UsageError("nothing to calibrate for", hint="--data DIR or --requests FILE.jsonl")


_POLICY_OPTIONS = {rule.name for rule in fields(Policy)} & set(RunOptions.__dataclass_fields__)


def build_policy(options: RunOptions) -> Policy:
    """Return the policy of these options; an option of None takes the policy's default."""
    values = {name: getattr(options, name) for name in _POLICY_OPTIONS}
    if options.ram_budget is not None:
        values["ram_budget_bytes"] = size_bytes(options.ram_budget)
    return Policy(**{name: value for name, value in values.items() if value is not None})


def read_policy(given: Policy | Mapping[str, Any] | None) -> Policy:
    """Return the library's `policy` argument as a Policy. Raises UsageError for an unknown key."""
    if given is None or isinstance(given, Policy):
        return given or Policy()
    if not isinstance(given, Mapping):
        raise TypeError(f"policy is a Policy or a dict of its fields, not {type(given).__name__}")
    known = [rule.name for rule in fields(Policy)]
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(str(name), known, n=1)
            meant = near[0] if near else f"one of {', '.join(known)}"
            raise UsageError(f"policy: unknown key {name!r}", hint=meant)
    return Policy(**given)


def policy_options(policy: Policy) -> dict[str, Any]:
    """Return the values that differ from the defaults, by option name."""
    default = Policy()
    values = {name: getattr(policy, name) for name in _POLICY_OPTIONS}
    return {name: value for name, value in values.items() if value != getattr(default, name)}


# vLLM arguments that a calibration sets itself, and the option that steers each.
_DERIVED: Final = {
    "model": "--model MODEL",
    "limit_mm_per_prompt": "--count image=4",
    "mm_processor_kwargs": "--max-tokens-per-item N; mmcalib validate checks a file of your own",
    "mm_processor_cache_gb": "--ram-budget 8GiB",
    "media_io_kwargs": """--media-io-kwargs '{"video": {"fps": 1}}'""",
    "max_model_len": "--max-model-len 32768",
    "max_num_batched_tokens": "--max-num-batched-tokens 8192",
    "max_num_seqs": "Policy(max_num_seqs=64)",
    "gpu_memory_utilization": "Policy(gpu_memory_utilization=0.9)",
}
DERIVED_ARGUMENTS: Final = frozenset(_DERIVED) - {"model"}
# A run keeps these from the user's configuration unless an option overrides them.
KEPT_ARGUMENTS: Final = (
    "max_model_len",
    "max_num_seqs",
    "gpu_memory_utilization",
    "media_io_kwargs",
)
# `--pin-kv-cache` sets these.
_PINNED: Final = ("kv_cache_memory_bytes", "compilation_config", "cudagraph_capture_sizes")


def reject_derived_flags(engine_args: Mapping[str, Any], *, pinned: bool) -> None:
    """Raise UsageError for arguments that a calibration sets itself, with the option to use."""
    for name in engine_args:
        if name in _DERIVED:
            raise UsageError(
                f"mmcalib run sets {flag(name)} itself and does not pass it on to vLLM",
                hint=_DERIVED[name],
            )
        if pinned and name in _PINNED:
            raise UsageError(
                f"{flag(name)} and --pin-kv-cache exclude each other", hint="remove one of them"
            )
