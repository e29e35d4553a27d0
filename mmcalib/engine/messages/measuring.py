"""Opening a model, and what its processor makes of items."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import Field

from mmcalib.census.shapes import AudioShape, ImageShape, Modality, VideoShape
from mmcalib.engine.server import Server
from mmcalib.engine.setting import Setting

WireShape = Annotated[VideoShape | AudioShape | ImageShape, Field(union_mode="left_to_right")]


@dataclass(frozen=True, slots=True)
class OpenModel:
    """Load config, tokenizer and processor of the checkpoint folder or cached hub model.

    Without `tries` nothing is tried out: no knobs are looked for, and nothing is said of tiles.
    """

    path: str
    max_model_len: int | None = None
    tries: bool = True
    kind: Literal["open_model"] = "open_model"


# Pixels of an image, a frame or a clip; pixels of an image's longer edge; tiles that an image is
# cut into; crops beside the whole image, 0 for none; frames that are kept, or frames a second.
KnobKind = Literal["area", "edge", "tiles", "crops", "frames"]


@dataclass(frozen=True, slots=True)
class Knob:
    """One option of the model's processor or loader that changes what an item of `modality` costs.

    `kind` is what its value counts; `path` is where it goes inside `argument`, outermost first;
    `value` its default; `unit_tokens` how many of its units make one token, None where tokens do
    not follow from it; `companions` are values that must stand beside it (the other edge of a
    size); `steps` are the values worth trying, ascending, of edges, crops and frames. `switch` is a
    boolean that must stand beside it, true unless the value is 0. `bleeds`: the other modalities
    whose items it moves too, in every spelling that is heeded.
    """

    name: str
    modality: Modality
    path: tuple[str, ...]
    value: int | float
    unit_tokens: int | None
    companions: dict[str, int] = field(default_factory=dict)
    argument: Literal["mm_processor_kwargs", "media_io_kwargs"] = "mm_processor_kwargs"
    steps: tuple[int | float, ...] = ()
    switch: str = ""
    bleeds: tuple[Modality, ...] = ()
    kind: KnobKind = field(kw_only=True)


@dataclass(frozen=True, slots=True)
class ModelOpened:
    """What vLLM says of the model, before anything is measured.

    `modalities` maps each supported modality to how many items vLLM itself allows (None: any).
    `serve_defaults` are the engine values that `vllm serve` would choose on this machine.
    `audio_rate_hz` is the rate to which clips are resampled, None without audio. `tiles_images`:
    images are cut into tiles, in one of a list of layouts. `encoder_decoder`: items are no
    part of the context, and vLLM keeps no processed ones for when they come again. `server` says
    which files are let in, where it was asked.
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
    versions: dict[str, str]
    tiles_images: bool = False
    encoder_decoder: bool = False
    server: Server = field(default_factory=Server)
    kind: Literal["model_opened"] = "model_opened"


@dataclass(frozen=True, slots=True)
class Blank:
    """A blank stand-in of this shape, sampled as the server would sample a real one."""

    modality: Modality
    shape: WireShape


@dataclass(frozen=True, slots=True)
class File:
    """A real file, loaded by vLLM's own media loader."""

    modality: Modality
    path: str


@dataclass(frozen=True, slots=True)
class Measure:
    """Cost every subject under the setting; answered by one `Measured` each, in order."""

    setting: Setting
    subjects: tuple[Blank | File, ...]
    kind: Literal["measure"] = "measure"


@dataclass(frozen=True, slots=True)
class Count:
    """Ask vLLM's own count of each stand-in's embeds, by its size; answered by one `Counted`."""

    setting: Setting
    subjects: tuple[Blank, ...]
    kind: Literal["count"] = "count"


@dataclass(frozen=True, slots=True)
class Counted:
    """Embeds per stand-in, None where vLLM's code for the model has no count of it; `sampled` as
    in `Cost`.
    """

    embeds: tuple[int | None, ...]
    sampled: tuple[tuple[int, ...], ...]
    kind: Literal["counted"] = "counted"


@dataclass(frozen=True, slots=True)
class Cost:
    """What vLLM's processor makes of one item.

    `tokens` is the length of its placeholder in the prompt, `embeds` its entries in the encoder
    cache, `tensor_bytes` the processed tensors sent to the encoder. `sampled` is what the loader
    handed over: (width, height), (frames, width, height) or (samples, rate). `load_s` and
    `process_s` are of the wall clock, `cpu_s` the processor seconds of both, of all threads.
    """

    tokens: int
    embeds: int
    tensor_bytes: int
    load_s: float
    process_s: float
    sampled: tuple[int, ...]
    cpu_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Measured:
    """The answer for subject `index`: a cost, or the reason why vLLM refuses the item."""

    index: int
    cost: Cost | None
    refusal: str = ""
    kind: Literal["measured"] = "measured"
