"""A policy as a YAML file: what `mmcalib run` is to choose by, kept beside the deployment."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from mmcalib.derive.policy import Prefer
from mmcalib.domain.shapes import Modality
from mmcalib.errors import UsageError

_DOCS = "docs/run.md lists the keys of a policy"


class _File(BaseModel):
    """The keys of the file: those of `Policy`, and the GPU that will serve. Sizes have units."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    prefer: Prefer | None = None
    coverage: float | dict[Modality, float] | None = None
    count: dict[Modality, int] | None = None
    max_tokens_per_item: int | None = None
    min_image_pixels: int | None = None
    min_video_frames: int | None = None
    text_reserve_tokens: int | None = None
    max_model_len: int | Literal["fit"] | None = None
    max_num_batched_tokens: int | None = None
    max_num_seqs: int | None = None
    gpu: str | None = None
    gpu_memory_utilization: float | None = None
    concurrency: float | None = None
    ram_budget: str | None = None
    allow_under_reserve: bool | None = None
    media_io_kwargs: dict[Modality, dict[str, Any]] | None = None


def read_policy(path: Path) -> dict[str, Any]:
    """What the file says, by its keys. Raises UsageError with the first thing that is wrong."""
    try:
        said = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(
            f"--policy {path}: {error.strerror}", hint="docs/run.md shows a policy"
        ) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        line = str(error).splitlines()[0]
        raise UsageError(f"--policy {path}: not YAML: {line}", hint=_DOCS) from error
    if said is None:
        return {}
    if not isinstance(said, dict):
        raise UsageError(f"--policy {path}: not a mapping of keys", hint=_DOCS)
    try:
        return _File.model_validate(said).model_dump(exclude_none=True)
    except ValidationError as error:
        raise UsageError(f"--policy {path}: {_first(error)}", hint=_DOCS) from error


def _first(error: ValidationError) -> str:
    # Of the forms that a value may have, the one that was meant fails deepest.
    first = max(error.errors(include_url=False), key=lambda found: len(found["loc"]))
    steps = [str(step) for step in first["loc"]]
    key = ".".join(step for step in steps if step not in ("float", "int") and "[" not in step)
    if first["type"] != "extra_forbidden":
        return f"{key}: {first['msg']}"
    near = difflib.get_close_matches(key, _File.model_fields, n=1)
    return f"{key} is no key of a policy" + (f"; meant is perhaps {near[0]}" if near else "")
