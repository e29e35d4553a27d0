"""The model, its server, and the cost of one item."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Literal

from mmcalib.domain.knobs import Knob
from mmcalib.domain.shapes import Modality
from mmcalib.text import share

# Variables of vllm/envs.py: the first three are of vllm/multimodal/media/audio.py (0.32), the next
# two of vllm/connections.py (since 0.29 and 0.33), then of vllm/multimodal/media/base.py (0.33) and
# of vllm/multimodal/media/image.py and vllm/multimodal/video_decoders (0.32). Last: Rust (0.33).
AUDIO_FILE = "VLLM_MAX_AUDIO_CLIP_FILESIZE_MB"
AUDIO_SECONDS = "VLLM_MAX_AUDIO_DECODE_DURATION_S"
AUDIO_BYTES = "VLLM_MAX_AUDIO_DECODE_BYTES"
DOWNLOAD = "VLLM_MAX_MEDIA_DOWNLOAD_SIZE_MB"
REQUEST_DOWNLOAD = "VLLM_MAX_MEDIA_REQUEST_DOWNLOAD_SIZE_MB"
REQUEST_BYTES = "VLLM_MAX_MEDIA_REQUEST_DECODE_BYTES"
PIXELS = "VLLM_MAX_IMAGE_PIXELS"
BODY_BYTES = "VLLM_HTTP_MAX_REQUEST_BODY_SIZE"
VARIABLES = (
    *(AUDIO_FILE, AUDIO_SECONDS, AUDIO_BYTES, DOWNLOAD, REQUEST_DOWNLOAD, REQUEST_BYTES, PIXELS),
    BODY_BYTES,
)

# Pillow opens no larger image, in vLLM too, regardless of that variable: twice
# PIL.Image.MAX_IMAGE_PIXELS. The variable has the same default.
MAX_PIXELS = 178_956_970


@dataclass(frozen=True, slots=True)
class Server:
    """Limits of the installed release's server, as mmcalib probed them.

    `limits` are the values of those `VARIABLES` that it applies, and `given` all that are set in
    its environment. `decodes`: does its loader decode a clip of this video codec? `lone_frames`:
    also one with a single frame? `torchcodec` decodes audio first, and counts channels differently.
    """

    limits: Mapping[str, int] = field(default_factory=dict)
    given: tuple[str, ...] = ()
    decodes: Mapping[str, bool] = field(default_factory=dict)
    lone_frames: bool = True
    torchcodec: bool = False

    @property
    def environment(self) -> dict[str, int]:
        """Variables that a server needs to admit what this one does, by mmcalib's names."""
        return {n: self.limits[n] for n in VARIABLES if n in self.given and n in self.limits}


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """The model as vLLM describes it, before any measurement.

    `modalities` maps each supported modality to the items that vLLM itself allows (None: any).
    `serve_defaults` are the engine values that `vllm serve` would choose on this machine.
    `audio_rate_hz` is the rate to which clips are resampled, None without audio. `tiles_images`:
    images are cut into tiles, in one of a list of layouts. `encoder_decoder`: items are not part
    of the context, and vLLM does not cache processed ones. `device` is where it computes; without
    `starts_engines` no engine starts there, as with a build for GPUs on a machine without one.
    `server` has its limits on files. `counted_by`: the processor that counts tokens. `unavailable`:
    facts that mmcalib could not read from this release, and why; they stay unknown.
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
    counted_by: str = ""
    text_layers: int = 0
    tiles_images: bool = False
    encoder_decoder: bool = False
    server: Server = field(default_factory=Server)
    unavailable: dict[str, str] = field(default_factory=dict)


# Rejections come from vLLM, or from this machine if it runs out of memory.
RejectedBy = Literal["vllm", "host_memory"]
# Quantiles of tokens per item in documents.
Quantile = Literal["min", "p50", "p90", "p99", "max"]


@dataclass(frozen=True, slots=True)
class Cost:
    """Cost of one item in vLLM's processor.

    `tokens` is the length of its placeholder in the prompt, `embeds` its entries in the encoder
    cache, `tensor_bytes` the processed tensors sent to the encoder. `sampled` is what the loader
    returned: (width, height), (frames, width, height) or (samples, rate). `load_s` and `process_s`
    are wall-clock time, `cpu_s` the processor seconds of both over all threads.
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
    """Share of their default tokens that items of one modality keep. `mean` is over all items,
    `worst` the smallest share, that of the item `exemplar`.
    """

    items_smaller: int = 0
    mean: float = 1.0
    worst: float = 1.0
    exemplar: str = ""

    def describe(self, modality: str) -> str:
        """`images keep 48.0% of their tokens on average, the worst 10.3%`."""
        which = {"audio": "audio clips"}.get(modality, f"{modality}s")
        keep = f"{which} keep {share(self.mean)} of their tokens on average"
        return f"{keep}, the worst {share(self.worst)}"


@dataclass(frozen=True, slots=True)
class ProcessedItem:
    """One processed item, without its loading: `tensors` has the name, type and shape of each.
    `peak_bytes` on the device are above the usage before; None without memory of its own.
    """

    tokens: int
    embeds: int
    tensors: tuple[str, ...]
    seconds: float
    peak_bytes: int | None

    def first_difference(self, other: ProcessedItem, device: str) -> str:
        """Describe the first difference from `other`, made on `device`; empty if equal."""
        ours = (f"{self.tokens} tokens", f"{self.embeds} embeds", *self.tensors)
        theirs = (f"{other.tokens} tokens", f"{other.embeds} embeds", *other.tensors)
        for one, two in zip_longest(ours, theirs, fillvalue="nothing more"):
            if one != two:
                return f"{one} on the CPU, {two} on {device}"
        return ""
