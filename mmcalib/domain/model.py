"""ModelInfo, Server, ItemCost inputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Literal

from mmcalib.domain.knobs import Knob
from mmcalib.domain.shapes import Modality
from mmcalib.text import share

# Variables of vllm/envs.py: the first three are of vllm/multimodal/media/audio.py (0.32), the
# fourth of vllm/connections.py (since 0.29), the fifth of release 0.33, the last of
# vllm/multimodal/media/image.py and vllm/multimodal/video_decoders (0.32).
AUDIO_FILE = "VLLM_MAX_AUDIO_CLIP_FILESIZE_MB"
AUDIO_SECONDS = "VLLM_MAX_AUDIO_DECODE_DURATION_S"
AUDIO_BYTES = "VLLM_MAX_AUDIO_DECODE_BYTES"
DOWNLOAD = "VLLM_MAX_MEDIA_DOWNLOAD_SIZE_MB"
REQUEST_BYTES = "VLLM_MAX_MEDIA_REQUEST_DECODE_BYTES"
PIXELS = "VLLM_MAX_IMAGE_PIXELS"
VARIABLES = (AUDIO_FILE, AUDIO_SECONDS, AUDIO_BYTES, DOWNLOAD, REQUEST_BYTES, PIXELS)

# Pillow opens no larger picture, for vLLM neither, whatever that variable says: twice
# PIL.Image.MAX_IMAGE_PIXELS. The variable's default is the same.
MAX_PIXELS = 178_956_970


@dataclass(frozen=True, slots=True)
class Server:
    """What the server of the installed release lets in, as it was asked.

    `limits` are values of `VARIABLES`, those that the release has, and `given` the ones that were
    set in its environment; `decodes` says of each tried
    video codec whether its loader got frames out of a clip, and `lone_frames` whether out of one
    that has a single frame. `torchcodec`: it decodes sound first by that library, which counts
    channels otherwise.
    """

    limits: Mapping[str, int] = field(default_factory=dict)
    given: tuple[str, ...] = ()
    decodes: Mapping[str, bool] = field(default_factory=dict)
    lone_frames: bool = True
    torchcodec: bool = False

    @property
    def environment(self) -> dict[str, int]:
        """What a server's environment needs to admit what this one does, by mmcalib's variables."""
        return {n: self.limits[n] for n in VARIABLES if n in self.given and n in self.limits}


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What vLLM says of the model, before anything is measured.

    `modalities` maps each supported modality to how many items vLLM itself allows (None: any).
    `serve_defaults` are the engine values that `vllm serve` would choose on this machine.
    `audio_rate_hz` is the rate to which clips are resampled, None without audio. `tiles_images`:
    images are cut into tiles, in one of a list of layouts. `encoder_decoder`: items are no part of
    the context, and vLLM keeps no processed ones for when they come again. `device` is where it
    computes; without `starts_engines` that is all it does there, as in a build for GPUs on a
    machine without one. `server` says which files are let in, where it was asked. `moved`: what
    this release could not be asked, and why; nothing is said of it then.
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


# Who says no to an item: vLLM, or this machine, which has no memory for it.
RefusedBy = Literal["vllm", "host_memory"]
# Of tokens per item, in a document.
Quantile = Literal["min", "p50", "p90", "p99", "max"]


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
class Retention:
    """What items of one modality keep of the tokens that they take by default. `mean` is over all
    items, `worst` of the item that keeps least, `exemplar`; both are shares of its tokens.
    """

    items_smaller: int = 0
    mean: float = 1.0
    worst: float = 1.0
    exemplar: str = ""

    def describe(self, modality: str) -> str:
        """`images keep 48.0% of their tokens on average, the worst 10.3%`."""
        which = {"audio": "sounds"}.get(modality, f"{modality}s")
        kept = f"{which} keep {share(self.mean)} of their tokens on average"
        return f"{kept}, the worst {share(self.worst)}"


@dataclass(frozen=True, slots=True)
class Processed:
    """One item, without its loading: `tensors` are the name, type and shape of each. `peak_bytes`
    of the device are above what was held before; None on one that has no memory of its own.
    """

    tokens: int
    embeds: int
    tensors: tuple[str, ...]
    seconds: float
    peak_bytes: int | None

    def difference(self, other: Processed, device: str) -> str:
        """The first thing that the other, of `device`, has otherwise; empty without any."""
        ours = (f"{self.tokens} tokens", f"{self.embeds} embeds", *self.tensors)
        theirs = (f"{other.tokens} tokens", f"{other.embeds} embeds", *other.tensors)
        for one, two in zip_longest(ours, theirs, fillvalue="nothing more"):
            if one != two:
                return f"{one} on the CPU, {two} on {device}"
        return ""
