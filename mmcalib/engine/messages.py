"""Every request of the parent to the child that owns vLLM, and every reply, on a pipe.

A request is answered by any number of `Interim`s, then by its reply (a record of the domain, or a
message for several things) or by `Failed`. A new request is a class here and a case in
`mmcalib.child.service`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import Any, ClassVar, Generic, Literal, TypeVar, dataclass_transform, get_args

from pydantic import TypeAdapter

from mmcalib.corpus.chat import ChatRequest
from mmcalib.domain.items import TextBound, TextCounting
from mmcalib.domain.knobs import Setting
from mmcalib.domain.memory import Budget, EncoderStep, Rehearsed, WorkerMemory
from mmcalib.domain.model import Cost, ModelInfo, Processed, RefusedBy
from mmcalib.domain.shapes import Modality, Shape
from mmcalib.domain.traffic import Arrivals, SplitPrompt, Traffic, TrafficRequest
from mmcalib.models.gpus import Gpu


@dataclass_transform(frozen_default=True)
class Message:
    """What crosses the pipe: a class below it is a frozen dataclass without saying so."""

    named: ClassVar[dict[str, type[Any]]] = {}

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        dataclass(frozen=True)(cls)
        Message.named[cls.__name__] = cls


class Interim(Message):
    """Says how far a request is, or a part of its answer: others follow."""


R = TypeVar("R")


class Request(Message, Generic[R]):
    """Closed by one R. `sets_state`: it affects later answers. `repeatable`: answers stand."""

    sets_state: ClassVar[bool]
    repeatable: ClassVar[bool]

    def __init_subclass__(cls, *, sets_state: bool = False, repeatable: bool = False) -> None:
        super().__init_subclass__()
        cls.sets_state, cls.repeatable = sets_state, repeatable
        Message.named.setdefault(cls.reply().__name__, cls.reply())

    @classmethod
    def reply(cls) -> type[R]:
        """What closes it, as it is declared: `Request[R]`."""
        found: type[R]
        (found,) = get_args(cls.__orig_bases__[0])  # type: ignore[attr-defined]
        return found


def encode(message: object) -> bytes:
    """One line on the pipe: the name of its class, then its fields as JSON."""
    name = type(message).__name__
    return name.encode() + b"\n" + _adapter(name).dump_json(message)


def decode(line: bytes) -> Any:
    """Raises ValueError or KeyError for what `encode` did not make."""
    name, _, fields = line.partition(b"\n")
    return _adapter(name.decode()).validate_json(fields)


@cache
def _adapter(name: str) -> TypeAdapter[Any]:
    return TypeAdapter(Message.named[name])


class AskBudget(Request[Budget], repeatable=True):
    """vLLM's own MultiModalBudget for these engine arguments (underscored names).

    `build_dummy` also builds dummy items (gigabytes), `only_profiled` just those of the profile.
    """

    engine_args: dict[str, Any]
    build_dummy: bool
    only_profiled: bool = False


FailureKind = Literal["vllm", "not_multimodal", "not_installed", "moved"]


class Said(Interim):
    """A word on how far the request is: shown beside the progress bar."""

    text: str


class Done(Message):
    """The request is finished and has no other closing reply."""


class Failed(Message):
    """The request failed, in vLLM's words on one line; `exhausted` is what the machine lacked."""

    error: str
    kind: FailureKind = "vllm"
    exhausted: str = ""


class Looked(Message):
    """vLLM's name of its `device` (empty: none), the GPU's free and total bytes (None without one),
    and why libraries do not import.
    """

    device: str
    free_bytes: int | None
    total_bytes: int | None
    failing: dict[str, str]


class Look(Request[Looked]):
    """Import vLLM and what reaches into it, and ask where it would run."""


class OpenModel(Request[ModelInfo], sets_state=True):
    """Load config, tokenizer and processor of the checkpoint folder or cached hub model.

    `engine_args` are the server's further ones. Without `tries` no knobs and tiles are looked for.
    """

    path: str
    max_model_len: int | None = None
    tries: bool = True
    engine_args: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Blank:
    """A blank stand-in of this shape, sampled as the server would sample a real one."""

    shape: Shape

    @property
    def modality(self) -> Modality:
        return self.shape.modality


@dataclass(frozen=True, slots=True)
class File:
    """A real file, loaded by vLLM's own media loader."""

    modality: Modality
    path: str


class Measure(Request[Done], repeatable=True):
    """Cost every subject under the setting; answered by one `Measured` each, in order."""

    setting: Setting
    subjects: tuple[Blank | File, ...]

    @property
    def of_files(self) -> bool:
        """Whether any is real."""
        return any(isinstance(subject, File) for subject in self.subjects)


class Measured(Interim):
    """The cost of subject `index`, or why vLLM or host memory refuses it. `resampled`: samples of a
    sound at the model's rate, by vLLM and by librosa; empty if not compared.
    """

    index: int
    cost: Cost | None
    refusal: str = ""
    refused_by: RefusedBy = "vllm"
    resampled: tuple[int, ...] = ()


class Counted(Message):
    """Embeds (None without a count) and `sampled` as in `Cost`, `parts` as in `VllmCount`."""

    embeds: tuple[int | None, ...]
    sampled: tuple[tuple[int, ...], ...]
    parts: tuple[int | None, ...] = ()


class CountEmbeds(Request[Counted], repeatable=True):
    """Ask vLLM's own count of each stand-in's embeds, by its size."""

    setting: Setting
    subjects: tuple[Blank, ...]


class DevicesCompared(Message):
    """Both results; one that is None was refused for the reason in `refusal`."""

    cpu: Processed | None
    device: Processed | None
    refusal: str = ""


class CompareDevices(Request[DevicesCompared]):
    """Process on the CPU and on `device` (torch's word); `warm`: after an unmeasured first run."""

    setting: Setting
    subject: Blank | File
    device: str
    warm: bool = False


class Imagine(Request[Done], sets_state=True):
    """Put the child on an imaginary GPU for good. Must come before anything else is asked."""

    gpu: Gpu


class Rehearse(Request[Rehearsed], repeatable=True):
    """Run vLLM's startup on an imaginary GPU, as far as the size of its KV cache, then `steps`.

    The child then answers for no other GPU. `engine_args` includes the model's folder.
    """

    engine_args: dict[str, Any]
    gpu: Gpu
    steps: tuple[EncoderStep, ...] = ()


class ServeTraffic(Request[Traffic], repeatable=True):
    """Start vLLM's engine core and serve the requests, in order, until all have answers.

    Without a `gpu` this machine's engine serves, and its memory is not known. Answers are made up.
    """

    engine_args: dict[str, Any]
    requests: tuple[TrafficRequest, ...]
    arrivals: Arrivals
    gpu: Gpu | None


class ServeConfig(Message):
    """Engine arguments that the file sets, as parsed; `values` of all of `vllm serve`. `reaching`:
    settings of the file alone that import, run, write or connect. `server`: other arguments set.
    """

    engine_args: dict[str, Any]
    values: dict[str, Any] = field(default_factory=dict)
    reaching: tuple[str, ...] = ()
    server: tuple[str, ...] = ()


class ParseServeConfig(Request[ServeConfig]):
    """Parse what `vllm serve` would be given: a YAML file, flags, or both (flags win). `written`
    are flags that a file of another form holds: the user's own go behind them.
    """

    path: str | None = None
    flags: tuple[str, ...] = ()
    written: tuple[str, ...] = ()


class ServeOptions(Message):
    """Options of `vllm serve` (no dashes) with their arguments, and the engine's arguments."""

    arguments: dict[str, str]
    engine: tuple[str, ...] = ()


class ListServeOptions(Request[ServeOptions]):
    """Which options `vllm serve` has."""


class EngineStarted(Message):
    """Figures read from inside the worker; bytes and seconds. None where not measured.

    `*_full_*` figures are scaled to the true depth. `gpu` is None on the CPU, where the peak is
    traced. `computed_in` is the type that stood in for one this CPU lacks. `most_step_tokens` fit
    one encoder step in the free memory; None if all that vLLM profiles do.
    """

    device: str
    start_s: float
    weights_bytes: int
    weights_full_bytes: int
    kv_bytes_per_token: int
    kv_full_bytes_per_token: int
    encoder_seconds_per_token: float | None
    profile_estimate_s: float | None
    profile_s: float | None
    activation_peak_bytes: int | None
    budget_tokens: int
    profiled_modality: str | None
    profiled_items: int
    computed_in: str | None = None
    most_step_tokens: int | None = None
    gpu: WorkerMemory | None = None


class StartEngine(Request[EngineStarted]):
    """Start the real engine with dummy weights and read its memory from inside.

    vLLM's profile runs again, traced, if estimated within `profile_budget_s`; where that is None,
    only if nothing else tells the encoder's time.
    """

    engine_args: dict[str, Any]
    true_layers: tuple[int, int]
    profile_budget_s: float | None


@dataclass(frozen=True, slots=True)
class ReplayPrompt:
    """One chat request to answer, and the tokens that its items were measured to cost, in order."""

    origin: str
    request: ChatRequest
    item_tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Answered:
    """How one replayed prompt went: its error, if any, and the item tokens the engine counted."""

    origin: str
    error: str
    prompt_tokens: int
    item_tokens: tuple[int, ...]
    out_of_memory: bool = False


class Replayed(Message):
    """Answers of one burst, its seconds and largest encoder step in tokens; outcomes of prompts
    only `admitted`. `peak_bytes`: torch's peak on a GPU above its start, None without one.
    """

    answers: tuple[Answered, ...]
    seconds: float
    largest_encoder_step_tokens: int
    admitted: tuple[Answered, ...] = ()
    peak_bytes: int | None = None

    @property
    def outcomes(self) -> tuple[Answered, ...]:
        """What became of every prompt."""
        return (*self.answers, *self.admitted)


class Replay(Request[Replayed]):
    """Submit prompts to the started engine as one burst, after those to `admit`, not answered."""

    prompts: tuple[ReplayPrompt, ...]
    admit: tuple[ReplayPrompt, ...] = ()


class TextsCounted(Message):
    """Tokens per request, or vLLM's words where it refuses one."""

    tokens: tuple[int | str, ...]


class CountTexts(Request[TextsCounted], repeatable=True):
    """Count what each bare request takes beside the placeholders of its items."""

    requests: tuple[ChatRequest, ...]


class TextsSplit(Message):
    """The prompt of each request, None where vLLM refuses it."""

    prompts: tuple[SplitPrompt | None, ...]


class SplitTexts(Request[TextsSplit], repeatable=True):
    """Tokenize what stands before, between and after the items of each bare request."""

    requests: tuple[ChatRequest, ...]


class BoundTexts(Request[TextBound], repeatable=True):
    """Find what bounds the text of any request."""

    modalities: tuple[Modality, ...]


class CountingFound(Message):
    """None where transformers and vLLM count differently; `why` names the part left out."""

    counting: TextCounting | None
    why: str = ""


class FindCounting(Request[CountingFound], repeatable=True):
    """Find how transformers counts texts without vLLM."""

    modalities: tuple[Modality, ...]


class GrammarFound(Message):
    """As `mmcalib.corpus.grammar` reads it."""

    grammar: dict[str, Any]


class AskGrammar(Request[GrammarFound], repeatable=True):
    """Ask for the schema of chat requests, the types of parts, and what stands for an item."""

    modalities: tuple[Modality, ...]
