"""From words on the command line to a job; every mistake is one clear line."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

from mmcalib.derive.policy import FIT, Policy, Prefer
from mmcalib.domain.shapes import MODALITIES, Modality
from mmcalib.errors import UsageError
from mmcalib.gpus import present
from mmcalib.gpus.gpu import Gpu
from mmcalib.job.memory.rehearse import AUTO, gpu_of
from mmcalib.job.policy_file import read_policy
from mmcalib.job.probing import DEFAULT, ProbeOptions
from mmcalib.job.spec import VALIDATIONS, Job
from mmcalib.sizes import size_bytes

_POSITIVE = (
    "max_tokens_per_item",
    "max_num_batched_tokens",
    "max_num_seqs",
    "min_image_pixels",
    "min_video_frames",
)


def job_of(
    *,
    model: str,
    data: Sequence[str],
    requests: Sequence[Path],
    allowed_root: Path | None,
    validate: str,
    startup_budget_s: float,
    sample: int,
    seed: int,
    gpu: str | None,
    allow_url: bool = False,
    probe: ProbeOptions = DEFAULT,
    encoder_sweep: bool = False,
    device: str = "auto",
    policy: Path | None = None,
    **flags: Any,
) -> Job:
    """Check what the parser cannot, and build the job. Raises UsageError."""
    if not data and not requests:
        raise UsageError("nothing to calibrate for", hint="--data DIR or --requests FILE.jsonl")
    if allowed_root is not None and not allowed_root.is_dir():
        raise UsageError(
            f"--allowed-local-media-path {allowed_root} is not a folder",
            hint="the folder below which requests may name files",
        )
    if not 0 <= startup_budget_s < math.inf:
        raise UsageError(
            "--startup-budget must be a number of seconds, 0 or more", hint="--startup-budget 90"
        )
    if sample < 1:
        raise UsageError(
            "--sample must be at least 1: the heaviest item is always measured", hint="--sample 12"
        )
    said = read_policy(policy) if policy is not None else {}
    named = gpu if gpu is not None else said.pop("gpu", None)
    said.pop("gpu", None)
    return Job(
        model=model,
        data=tuple(data),
        requests=tuple(requests),
        allowed_root=allowed_root,
        policy=policy_of(said, **flags),
        validate=_one_of("--validate", validate, VALIDATIONS),  # type: ignore[arg-type]
        startup_budget_s=startup_budget_s,
        sample=sample,
        seed=seed,
        gpu=_gpu(named),
        allow_url=allow_url,
        probe=probe,
        encoder_sweep=encoder_sweep,
        device=device,  # type: ignore[arg-type]
    )


def _gpu(name: str | None) -> Gpu | None:
    """The one named, or the one that is here; None where there is none."""
    if name is not None:
        return gpu_of(name)
    return gpu_of(AUTO) if present.has_gpu() else None


def policy_of(said: Mapping[str, Any], **flags: Any) -> Policy:
    """The policy that a file says, with flags on top; a flag that is None or empty says nothing.

    Raises UsageError.
    """
    given = {n: v for n, v in flags.items() if v is not None and v is not False and v != []}
    parsers = {
        "count": lambda words: dict(_count(word) for word in words),
        "coverage": _coverage,
        "max_model_len": _max_model_len,
        "media_io_kwargs": _media_io_kwargs,
    }
    for name in parsers.keys() & given.keys():
        given[name] = parsers[name](given[name])
    merged = {**said, **given}
    if "count" in given:
        merged["count"] = {**said.get("count", {}), **given["count"]}
    if "ram_budget" in merged:
        merged["ram_budget_bytes"] = _size("--ram-budget", merged.pop("ram_budget"))
    _check(merged)
    return Policy(**merged)


def _check(given: Mapping[str, Any]) -> None:
    """That every value can be meant, whoever gave it."""
    _one_of("--prefer", given.get("prefer", "quality"), get_args(Prefer))
    coverage = given.get("coverage", 1.0)
    for share in coverage.values() if isinstance(coverage, Mapping) else [coverage]:
        if not 0 < share <= 1:
            raise UsageError(f"--coverage {share} is not a share", hint="--coverage 0.99")
    for name in _POSITIVE:
        if given.get(name, 1) < 1:
            option = f"--{name.replace('_', '-')}"
            raise UsageError(
                f"{option} must be at least 1, not {given[name]}",
                hint=f"{option} N, or leave it out",
            )
    if given.get("max_model_len", FIT) != FIT and given["max_model_len"] < 1:
        raise UsageError(
            f"--max-model-len must be at least 1, not {given['max_model_len']}",
            hint="--max-model-len 32768, or fit",
        )
    if any(number < 0 for number in given.get("count", {}).values()):
        raise UsageError("a count must not be negative", hint="--count image=4")
    if given.get("text_reserve_tokens", 0) < 0:
        raise UsageError(
            "--text-reserve-tokens must not be negative", hint="--text-reserve-tokens 1024"
        )
    if not 0 < given.get("gpu_memory_utilization", 1) <= 1:
        raise UsageError(
            f"--gpu-memory-utilization {given['gpu_memory_utilization']} is not a share",
            hint="--gpu-memory-utilization 0.9",
        )
    if not 0 < given.get("concurrency", 1) < math.inf:
        raise UsageError("--concurrency must be a number above 0", hint="--concurrency 16")


def _coverage(words: Sequence[str]) -> float | dict[Modality, float]:
    """One share for all modalities together, or one for each."""
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


def _max_model_len(words: str) -> int | Literal["fit"]:
    if words == FIT:
        return FIT
    try:
        return int(words)
    except ValueError:
        raise UsageError(
            f"--max-model-len {words} is no number of tokens", hint="--max-model-len 32768, or fit"
        ) from None


def _size(option: str, words: str) -> int:
    found = size_bytes(words)
    if found is None:
        raise UsageError(f"{option} {words}: not a size", hint=f"{option} 16GiB")
    return found


def _media_io_kwargs(words: str) -> dict[str, dict[str, Any]]:
    """JSON of modality -> options, as `vllm serve --media-io-kwargs` takes it."""
    try:
        given = json.loads(words)
    except ValueError:
        given = None
    wrong = not isinstance(given, dict) or any(
        modality not in MODALITIES or not isinstance(options, dict)
        for modality, options in given.items()
    )
    if wrong:
        raise UsageError(
            f"--media-io-kwargs {words}: not JSON of options per modality",
            hint="""--media-io-kwargs '{"video": {"fps": 1}}'""",
        )
    return dict(given)


def _one_of(option: str, given: str, choices: Sequence[str]) -> str:
    if given not in choices:
        raise UsageError(f"{option} {given}: no such choice", hint=f"one of {', '.join(choices)}")
    return given


def _count(words: str) -> tuple[Modality, int]:
    modality, _, number = words.partition("=")
    if modality not in MODALITIES or not number.isdecimal():
        raise UsageError(f"--count {words}: not a modality and a number", hint="--count image=4")
    return modality, int(number)
