"""Where a model's configuration comes from: local folder, hub cache, hub, bundled geometry."""

from __future__ import annotations

import difflib
import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from mmcalib.errors import ModelError
from mmcalib.models.catalogue import bundled, find
from mmcalib.models.checkpoint import checkpoint_files, materialise
from mmcalib.models.fact import Geometry
from mmcalib.models.hub import HubUnavailable, HuggingFaceHub, ModelHub, cached_snapshot

Source = Literal["local", "hub", "bundled"]


@dataclass(frozen=True, slots=True)
class ResolvedModel:
    """A folder that vLLM can open. `geometry` is set when the folder was written from one."""

    id: str
    path: str
    source: Source
    geometry: Geometry | None
    notes: tuple[str, ...]


def resolve(
    model: str,
    *,
    cache_dir: Path,
    revision: str | None = None,
    env: Mapping[str, str] | None = None,
    hub: ModelHub | None = None,
) -> ResolvedModel:
    """Finds the model's folder; a bundled geometry is written below `cache_dir`/geometry.

    `env` (default: the process environment) says where the hub and its cache are. Raises
    ModelError when nothing has the model, or when a local folder holds no config.json.
    """
    env = os.environ if env is None else env
    if (local := _local(model)) is not None:
        return ResolvedModel(model, str(local), "local", None, ())
    if (snapshot := cached_snapshot(model, revision, env)) is not None:
        return ResolvedModel(model, str(snapshot), "hub", None, ())
    try:
        fetched = (hub or HuggingFaceHub(env)).fetch(model, revision)
        return ResolvedModel(model, str(fetched), "hub", None, ())
    except HubUnavailable as reason:
        why = str(reason)
    geometry = find(model)
    if geometry is None:
        close = _close(model)
        raise ModelError(
            f"{model} is not a local folder, not in the hub cache, the hub cannot be reached "
            f"and no geometry is bundled for it ({why})",
            hint="mmcalib list models (what is bundled"
            + (f", such as {close}" if close else "")
            + "), or --model ./folder",
        )
    folder = materialise(geometry, cache_dir / "geometry" / _folder_name(geometry))
    note = f"using the bundled geometry, not the hub: {why}"
    return ResolvedModel(geometry.id, str(folder), "bundled", geometry, (note, *_doubts(geometry)))


def _local(model: str) -> Path | None:
    folder = Path(model).expanduser()
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise ModelError(
                f"{model} is a folder without config.json",
                hint="--model a folder as the hub lays it out: config.json, tokenizer, processor",
            )
        return folder.resolve()
    if model.startswith(("/", "./", "../", "~")):
        raise ModelError(f"{model} is not a folder", hint=f"ls {folder.parent}")
    return None


def _folder_name(geometry: Geometry) -> str:
    """The id and a digest of the content, so that new facts never meet an old folder."""
    digest = hashlib.sha256()
    for name, content in checkpoint_files(geometry).items():
        digest.update(name.encode() + b"\0" + content)
    return f"{geometry.id.replace('/', '--')}-{digest.hexdigest()[:12]}"


def _doubts(geometry: Geometry) -> tuple[str, ...]:
    return tuple(f"bundled geometry: {doubt}" for doubt in geometry.cannot_promise)


def _close(model: str) -> str | None:
    """What was meant: an id of which this is the beginning, or else one that is spelled like it."""
    known = [one.id for one in bundled()]
    longer = [name for name in known if name.lower().startswith(model.lower())]
    alike = difflib.get_close_matches(model, known, n=1)
    return next(iter([*longer, *alike]), None)
