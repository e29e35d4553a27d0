"""A subject's calibration, as a user would get it: `mmcalib run` over its corpus."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mmcalib
from judging.pool import Pool
from judging.subject import Subject
from judging.templates import HABITS, template
from mmcalib.admission.calibration import Calibration
from mmcalib.errors import MmcalibError
from mmcalib.models.catalogue import find_model
from mmcalib.models.checkpoint import materialise
from mmcalib.models.cut import cut_checkpoint, read_config
from mmcalib.processes import safe_environment

# One block of each stack, and that a narrow one: what is refused does not depend on depth or width.
LAYERS = 1
_MOST_S = 3600


@dataclass(frozen=True, slots=True)
class Calibrated:
    """The engine.yaml, the calibration, the checkpoint that is served, words on how it went, a
    digest of what it was made of, and the commit of mmcalib's sources.
    """

    engine_yaml: Path
    calibration: Calibration
    checkpoint: Path
    note: str
    made_of: str
    commit: str


def calibrated(subject: Subject, pool: Pool, folder: Path, habit: str = "") -> Calibrated:
    """From `folder`, where it was made by the same sources of mmcalib, or anew into it; with the
    bundled chat template, or with one of a `habit`.

    Raises MmcalibError where no engine.yaml comes of it.
    """
    mark = folder / "made-of.json"
    parts = f"{subject}\n{_sources()}\n{pool.folder.name}\n{HABITS.get(habit)}\n"
    made_of = hashlib.sha256(parts.encode()).hexdigest()[:16]
    made = json.loads(mark.read_text("utf-8")) if mark.exists() else {}
    if made.get("made_of") != made_of:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        note = _calibrate(subject, pool, folder, habit)
        made = {"made_of": made_of, "note": note, "commit": _commit()}
        mark.write_text(json.dumps(made), "utf-8")
    out = folder / "out"
    calibration = Calibration.load(out / "calibration.json")
    return Calibrated(out / "engine.yaml", calibration, folder / "cut", **made)


def _sources() -> str:
    """A digest of all of mmcalib that is imported here."""
    package = Path(mmcalib.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*")):
        if path.suffix in (".py", ".json", ".j2"):
            digest.update(path.read_bytes())
    return digest.hexdigest()


def _commit() -> str:
    """The last commit that changed mmcalib, and whether its files differ from that."""
    git = ("git", "-C", str(Path(mmcalib.__file__).parent))
    last = (*git, "log", "-1", "--format=%h", "--", ".")
    found = subprocess.run(last, capture_output=True, text=True, check=False).stdout.strip()
    changed = subprocess.run((*git, "diff", "--quiet", "HEAD", "--", "."), check=False).returncode
    return f"{found or '?'}{' with changes' if changed else ''}"


def _calibrate(subject: Subject, pool: Pool, folder: Path, habit: str) -> str:
    """Words on how it went, if not as it should."""
    requests = folder / "requests.jsonl"
    requests.write_text("".join(_line(names, pool) for names in subject.corpus), "utf-8")
    out, note = folder / "out", ""
    # A folder of one's own: its texts are counted, as those of a bundled name are not.
    narrowed(subject, folder, habit)
    model = folder / "whole"
    words = [
        *("run", "--model", str(model), "--requests", str(requests), "--out", str(out)),
        *("--allowed-local-media-path", str(pool.folder)),
        *("--max-model-len", subject.max_model_len),
        *("--validate", "budget", "--no-thumbnails", "--quiet"),
    ]
    said = _mmcalib(words)
    if not (out / "engine.yaml").exists():
        note = f"its verdict was fail ({said.strip().splitlines()[0]})"
        said = _mmcalib([*words, "--force", "--allow-under-reserve"])
    if not (out / "engine.yaml").exists():
        raise MmcalibError(f"{subject.model}: no engine.yaml: {said.strip()[-2000:]}")
    return note


def narrowed(subject: Subject, folder: Path, habit: str = "") -> Path:
    """Its checkpoint of one narrow block of each stack, without weights, in `folder`."""
    geometry = find_model(subject.model)
    if geometry is None:
        raise MmcalibError(f"{subject.model} is not bundled: mmcalib list models")
    whole = materialise(geometry, folder / "whole")
    if habit:
        (whole / "chat_template.jinja").write_text(template(habit, geometry), "utf-8")
    cut = cut_checkpoint(whole, folder / "cut", LAYERS)
    config = read_config(cut)
    for name, value in subject.narrow.items():
        *parents, last = name.split(".")
        inner: dict[str, Any] = config
        for parent in parents:
            inner = inner[parent]
        if last not in inner:
            raise MmcalibError(f"{subject.model} has no {name} in its config.json")
        inner[last] = value
    (cut / "config.json").write_text(json.dumps(config, indent=1), "utf-8")
    return cut


def _line(names: Sequence[str], pool: Pool) -> str:
    content: list[dict[str, object]] = [{"type": "text", "text": "Describe."}]
    for name in names:
        medium = pool[name]
        kind = f"{medium.kind}_url"
        content.append({"type": kind, kind: {"url": medium.path.as_uri()}})
    return json.dumps({"messages": [{"role": "user", "content": content}]}) + "\n"


def _mmcalib(words: list[str]) -> str:
    """What it says on standard error."""
    command = [sys.executable, "-P", "-m", "mmcalib", *words]
    env = safe_environment(os.environ, sys.path)
    how: dict[str, Any] = {"capture_output": True, "text": True, "timeout": _MOST_S, "check": False}
    return str(subprocess.run(command, env=env, **how).stderr)
