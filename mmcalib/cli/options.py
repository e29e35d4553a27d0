"""From words on the command line to a job; every mistake is one clear line."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

from mmcalib.census.shapes import MODALITIES, Modality
from mmcalib.derive.policy import TEXT_RESERVE_TOKENS, Policy, Prefer
from mmcalib.errors import UsageError
from mmcalib.gpus import present
from mmcalib.gpus.gpu import Gpu
from mmcalib.job.memory.rehearse import AUTO, gpu_of
from mmcalib.job.spec import VALIDATIONS, Job

_POSITIVE = ("max_tokens_per_item", "max_model_len", "max_num_batched_tokens", "max_num_seqs")


def job_of(
    *,
    model: str,
    data: Sequence[Path],
    requests: Sequence[Path],
    allowed_root: Path | None,
    count: Sequence[str],
    validate: str,
    startup_budget_s: float,
    sample: int,
    seed: int,
    gpu: str | None,
    **policy: Any,
) -> Job:
    """Check what the parser cannot, and build the job. Raises UsageError."""
    if not data and not requests:
        raise UsageError("nothing to calibrate for", hint="--data DIR or --requests FILE.jsonl")
    if allowed_root is not None and not allowed_root.is_dir():
        raise UsageError(f"--allowed-local-media-path {allowed_root} is not a folder")
    if not 0 <= startup_budget_s < math.inf:
        raise UsageError("--startup-budget must be a number of seconds, 0 or more")
    if sample < 1:
        raise UsageError("--sample must be at least 1: the heaviest item is always measured")
    return Job(
        model=model,
        data=tuple(data),
        requests=tuple(requests),
        allowed_root=allowed_root,
        policy=policy_of(count, **policy),
        validate=_one_of("--validate", validate, VALIDATIONS),  # type: ignore[arg-type]
        startup_budget_s=startup_budget_s,
        sample=sample,
        seed=seed,
        gpu=_gpu(gpu),
    )


def _gpu(name: str | None) -> Gpu | None:
    """The one named, or the one that is here; None where there is none."""
    if name is not None:
        return gpu_of(name)
    return gpu_of(AUTO) if present.has_gpu() else None


def policy_of(
    count: Sequence[str],
    *,
    prefer: str,
    coverage: float,
    text_reserve_tokens: int | None,
    media_io_kwargs: str | None = None,
    **more: Any,
) -> Policy:
    """The policy that the options say. Raises UsageError."""
    if not 0 < coverage <= 1:
        raise UsageError(f"--coverage {coverage} is not a share", hint="--coverage 0.99")
    for name in _POSITIVE:
        if more[name] is not None and more[name] < 1:
            raise UsageError(f"--{name.replace('_', '-')} must be at least 1, not {more[name]}")
    reserve = TEXT_RESERVE_TOKENS if text_reserve_tokens is None else text_reserve_tokens
    if reserve < 0:
        raise UsageError("--text-reserve-tokens must not be negative")
    return Policy(
        prefer=_one_of("--prefer", prefer, get_args(Prefer)),  # type: ignore[arg-type]
        coverage=coverage,
        count=dict(_count(words) for words in count),
        text_reserve_tokens=reserve,
        media_io_kwargs=_media_io_kwargs(media_io_kwargs),
        **more,
    )


def _media_io_kwargs(words: str | None) -> dict[str, dict[str, Any]]:
    """JSON of modality -> options, as `vllm serve --media-io-kwargs` takes it."""
    if words is None:
        return {}
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
