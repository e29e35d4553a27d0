"""A bundled model asked in vLLM: what its usual items cost, its knobs, and a configuration."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmcalib.derive.policy import Policy
from mmcalib.domain.cost import Cost
from mmcalib.domain.setting import DEFAULT
from mmcalib.domain.shapes import AudioShape, ImageShape, Modality, Shape
from mmcalib.engine.host import EngineHost
from mmcalib.engine.messages import Blank, Measure, OpenModel
from mmcalib.media.blank import write_blank
from mmcalib.models import Geometry, materialise
from mmcalib.models.figures import USUAL
from mmcalib.progress import Silent
from mmcalib.workflows.calibration.decided import derive
from mmcalib.workflows.calibration.served import Served, open_to_calibrate, serve
from mmcalib.workflows.calibration.session import Session
from mmcalib.workflows.calibration.sources import Sources, find_model, read_corpus
from mmcalib.workflows.spec import Job

# What the configuration is for: a chat about one picture or, of a model that sees none, half a
# minute of sound; in a context of this length where the model's own is no shorter.
CONTEXT_TOKENS = 8192
_PICTURE, _SOUND = ImageShape(1024, 1024), AudioShape(30 * 16_000, 16_000)


@dataclass(frozen=True, slots=True)
class Found:
    """`calibrated` are engine arguments, without the model."""

    folder: Path
    vllm: str
    tokens: Mapping[Modality, int]
    knobs: tuple[str, ...]
    calibrated: Mapping[str, Any]


def found(geometry: Geometry, host: EngineHost, cache: Path) -> Found:
    folder = materialise(geometry, cache / geometry.id.replace("/", "--"))
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        (scratch / "media").mkdir()
        write_blank(_subject(geometry), 0, scratch / "media")
        session, served = _served(folder, host, scratch)
        calibrated = derive(session, served).decision.engine_args
    return Found(
        folder,
        served.opened.versions["vllm"],
        {m: _tokens(host, USUAL[m]) for m in served.opened.modalities},
        tuple(knob.name for knob in served.opened.knobs),
        calibrated,
    )


def _subject(geometry: Geometry) -> Shape:
    return _PICTURE if "image" in geometry.modalities else _SOUND


def _served(folder: Path, host: EngineHost, scratch: Path) -> tuple[Session, Served]:
    longest = host.ask(OpenModel(str(folder), tries=False), "opening").model.max_model_len
    job = Job(
        str(folder),
        [scratch / "media"],
        policy=Policy(max_model_len=min(CONTEXT_TOKENS, longest)),
        validate="none",
        cache_dir=scratch / "cache",
    )
    session = Session(job, host, prediction=None, scratch=scratch, progress=Silent())
    resolved = find_model(job, Silent())
    opened = open_to_calibrate(session, resolved)
    sources = Sources(resolved, read_corpus(job, Silent()))
    return session, serve(session, sources, opened)


def _tokens(host: EngineHost, shape: Shape) -> int:
    (answer,) = host.measure(Measure(DEFAULT, (Blank(shape),)), "measuring")
    if not isinstance(answer.cost, Cost):
        raise ValueError(f"{shape} is refused: {answer.refusal}")
    return answer.cost.tokens
