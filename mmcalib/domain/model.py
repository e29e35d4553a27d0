"""A model as vLLM opens it."""

from __future__ import annotations

from dataclasses import dataclass, field

from mmcalib.domain.knobs import Knob
from mmcalib.domain.server import Server
from mmcalib.domain.shapes import Modality


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What vLLM says of the model, before anything is measured.

    `modalities` maps each supported modality to how many items vLLM itself allows (None: any).
    `serve_defaults` are the engine values that `vllm serve` would choose on this machine.
    `audio_rate_hz` is the rate to which clips are resampled, None without audio. `tiles_images`:
    images are cut into tiles, in one of a list of layouts. `encoder_decoder`: items are no
    part of the context, and vLLM keeps no processed ones for when they come again. `device` is
    where it computes; without `starts_engines` that is all it does there, as in a build for GPUs
    on a machine without one. `server` says
    which files are let in, where it was asked. `moved`: what could not be asked, because this
    release is not as mmcalib knows it, and why; nothing is said of it then.
    """

    architecture: str
    modalities: dict[Modality, int | None]
    max_model_len: int
    knobs: tuple[Knob, ...]
    serve_defaults: dict[str, int]
    chunks_mm_input: bool
    video_loader: str | None
    audio_rate_hz: int | None
    device: str
    starts_engines: bool
    versions: dict[str, str]
    tiles_images: bool = False
    encoder_decoder: bool = False
    server: Server = field(default_factory=Server)
    moved: dict[str, str] = field(default_factory=dict)
