"""Requests to the child process that runs vLLM, and its replies, pickled over a pipe.

The child answers a request with any number of texts to show next to the progress bar, and `Measure`
with `Measured`s too; last comes its reply (a record of the domain, or a message with several
values), or the `EngineError` for the parent to raise. A new request needs a class here and a case
in `mmcalib.child.service`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, TypeVar, dataclass_transform

from mmcalib.corpus.chat import ChatRequest
from mmcalib.domain.items import TextBound, TextCounting
from mmcalib.domain.knobs import Setting
from mmcalib.domain.memory import Budget, EncoderStep, EngineStarted, RehearsedMemory
from mmcalib.domain.model import Cost, ModelInfo, ProcessedItem, RejectedBy
from mmcalib.domain.shapes import Modality, Shape
from mmcalib.domain.traffic import Arrivals, BurstResult, SplitPrompt, Traffic, TrafficRequest
from mmcalib.models.gpus import Gpu


@dataclass_transform(frozen_default=True)
class Message:
    """Base of everything sent over the pipe; each subclass becomes a frozen dataclass."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        dataclass(frozen=True)(cls)


R = TypeVar("R", covariant=True)


class Request(Message, Generic[R]):
    """Ends with one reply R; `cacheable` answers stay valid."""

    cacheable: ClassVar[bool]

    def __init_subclass__(cls, *, cacheable: bool = False) -> None:
        super().__init_subclass__()
        cls.cacheable = cacheable


class ComputeBudget(Request[Budget], cacheable=True):
    """Compute vLLM's MultiModalBudget for these engine arguments (underscored names)."""

    engine_args: dict[str, Any]
    # Also builds dummy items (gigabytes), or only those of the profile.
    build_dummy: bool
    only_profiled: bool = False


class EnvironmentReport(Message):
    """vLLM's `device` (empty: none), the GPU's memory, and libraries that do not import."""

    device: str
    free_bytes: int | None
    total_bytes: int | None
    failing: dict[str, str]


class ProbeEnvironment(Request[EnvironmentReport]):
    """Import vLLM and mmcalib's adapters, and find the device that vLLM would use."""


class OpenModel(Request[ModelInfo]):
    """Open a checkpoint folder or cached hub model; `search_knobs` also finds knobs and tiles."""

    path: str
    max_model_len: int | None = None
    search_knobs: bool = True
    engine_args: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Blank:
    """A blank item of this shape, sampled as the server samples real media."""

    shape: Shape

    @property
    def modality(self) -> Modality:
        return self.shape.modality


@dataclass(frozen=True, slots=True)
class File:
    """A real file, loaded by vLLM's own media loader."""

    modality: Modality
    path: str


class Measure(Request[None], cacheable=True):
    """Measure the cost of every subject under the setting: one `Measured` each, in order."""

    setting: Setting
    subjects: tuple[Blank | File, ...]


class Measured(Message):
    """The cost of a subject, or the reason without one."""

    cost: Cost | None
    refusal: str = ""
    refused_by: RejectedBy = "vllm"
    # Samples of a sound at the model's rate, by vLLM and by librosa, if compared.
    resampled: tuple[int, ...] = ()


class EmbedCounts(Message):
    """Embeds (None: unknown) and `sampled` as in `Cost`, `parts` as in `VllmCount`."""

    embeds: tuple[int | None, ...]
    sampled: tuple[tuple[int, ...], ...]
    parts: tuple[int | None, ...] = ()


class CountEmbeds(Request[EmbedCounts], cacheable=True):
    """Count the embeds of each blank item with vLLM's own code, from its size."""

    setting: Setting
    subjects: tuple[Blank, ...]


class DeviceComparison(Message):
    """Both results; None for a device that failed, for the reason in `refusal`."""

    cpu: ProcessedItem | None
    device: ProcessedItem | None
    refusal: str = ""


class CompareDevices(Request[DeviceComparison]):
    """Process on the CPU and on `device` (torch's name); `warm` adds an unmeasured first run."""

    setting: Setting
    subject: Blank | File
    device: str
    warm: bool = False


class UseImaginaryGpu(Request[None]):
    """Put the child on an imaginary GPU for good. It must be the first request."""

    gpu: Gpu


class Rehearse(Request[RehearsedMemory], cacheable=True):
    """Run vLLM's startup on an imaginary GPU (for good) up to its KV cache's size, then `steps`.
    `beside_bytes` are taken on top of the allowance for non-torch memory.
    """

    engine_args: dict[str, Any]
    gpu: Gpu
    steps: tuple[EncoderStep, ...] = ()
    beside_bytes: int = 0


class ServeTraffic(Request[Traffic], cacheable=True):
    """Serve requests in order with placeholder answers, on an imaginary GPU (for good)."""

    engine_args: dict[str, Any]
    requests: tuple[TrafficRequest, ...]
    arrivals: Arrivals
    gpu: Gpu


class ServeConfig(Message):
    """Engine arguments that the file sets, and the `values` of all arguments of `vllm serve`."""

    engine_args: dict[str, Any]
    values: dict[str, Any] = field(default_factory=dict)
    # The file's own settings that import, run, write or connect.
    unsafe_settings: tuple[str, ...] = ()
    # Set arguments that are not the engine's.
    server: tuple[str, ...] = ()


class ParseServeConfig(Request[ServeConfig]):
    """Parse a YAML file, or `file_flags` from another form; the user's `flags` win over both."""

    path: str | None = None
    flags: tuple[str, ...] = ()
    file_flags: tuple[str, ...] = ()


class KnownOptions(Message):
    """Options of `vllm serve` (no dashes) with their arguments, and the engine's arguments."""

    arguments: dict[str, str]
    engine: tuple[str, ...] = ()


class ListServeOptions(Request[KnownOptions]):
    """List the options of `vllm serve`."""


class StartEngine(Request[EngineStarted]):
    """Start the real engine with dummy weights and read its memory from inside."""

    engine_args: dict[str, Any]
    true_layers: tuple[int, int]
    # The most for a traced profile; None: only if no other figure gives the encoder's time.
    profile_budget_s: float | None


@dataclass(frozen=True, slots=True)
class ReplayPrompt:
    """One chat request to answer, the measured tokens of its items, in order, and the encoder cache
    tokens of all together.
    """

    origin: str
    request: ChatRequest
    item_tokens: tuple[int, ...]
    embeds: int = 0


class Replay(Request[BurstResult]):
    """Submit prompts to the started engine as one burst, after admitting those in `admit`."""

    prompts: tuple[ReplayPrompt, ...]
    admit: tuple[ReplayPrompt, ...] = ()


class CountTexts(Request[tuple[int | str, ...]], cacheable=True):
    """Count each request's tokens without its items' placeholders; vLLM's error if it refuses."""

    requests: tuple[ChatRequest, ...]


class SplitTexts(Request[tuple[SplitPrompt | None, ...]], cacheable=True):
    """Tokenize the text before, between and after the items of each request; None if refused."""

    requests: tuple[ChatRequest, ...]


class BoundTexts(Request[TextBound], cacheable=True):
    """Find the limits on the text of any request."""

    modalities: tuple[Modality, ...]


class CountingResult(Message):
    """None if transformers and vLLM count differently; `why` names the part they disagree on."""

    counting: TextCounting | None
    why: str = ""


class FindCounting(Request[CountingResult], cacheable=True):
    """Find how to count texts with transformers, without vLLM."""

    modalities: tuple[Modality, ...]


class FindGrammar(Request[dict[str, Any]], cacheable=True):
    """Fetch the schema of chat requests, the types of parts, and the placeholders of items, in the
    form that `mmcalib.corpus.grammar` reads.
    """

    modalities: tuple[Modality, ...]
