"""A policy as a YAML file: what `mmcalib run` is to choose by, kept beside the deployment."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, get_type_hints

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from mmcalib.errors import UsageError
from mmcalib.options.option import options_of
from mmcalib.options.run import RunOptions

_DOCS = "docs/run.md lists the keys of a policy"


def _file() -> type[BaseModel]:
    """The keys of the file, by their types alone: bounds are checked with what overrides them."""
    types = get_type_hints(RunOptions)
    keys: dict[str, Any] = {
        field.name: (types[field.name] | None, None)
        for field in options_of(RunOptions)
        if field.option.in_policy
    }
    return create_model("PolicyFile", __config__=ConfigDict(extra="forbid", strict=True), **keys)


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
    model = _file()
    try:
        return model.model_validate(said).model_dump(exclude_none=True)
    except ValidationError as error:
        raise UsageError(
            f"--policy {path}: {_first(error, model.model_fields)}", hint=_DOCS
        ) from error


def _first(error: ValidationError, known: Iterable[str]) -> str:
    # Of the forms that a value may have, the one that was meant fails deepest.
    first = max(error.errors(include_url=False), key=lambda found: len(found["loc"]))
    steps = [str(step) for step in first["loc"]]
    key = ".".join(step for step in steps if step not in ("float", "int") and "[" not in step)
    if first["type"] != "extra_forbidden":
        return f"{key}: {first['msg']}"
    near = difflib.get_close_matches(key, known, n=1)
    return f"{key} is no key of a policy" + (f"; meant is perhaps {near[0]}" if near else "")
