"""Every request and reply, in one file.

What the parent asks of the child that owns vLLM, and what it answers, on a pipe.

A request is answered by any number of `Interim`s, then by its reply or by `Failed`. A reply is what
was asked for: a record of the domain, or a message where that is several things. A new request is a
class here, and a case in `mmcalib.child.service`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import Any, ClassVar, Generic, Literal, TypeVar, get_args

from pydantic import TypeAdapter

from mmcalib.corpus.chat import ChatRequest
from mmcalib.domain.items import TextBound, TextCounting
from mmcalib.domain.knobs import Setting
from mmcalib.domain.memory import Budget, EncoderStep, Rehearsed, WorkerMemory
from mmcalib.domain.model import Cost, ModelInfo, Processed, RefusedBy
from mmcalib.domain.shapes import Modality, Shape
from mmcalib.domain.traffic import Arrivals, SplitPrompt, Traffic, TrafficRequest
from mmcalib.models.gpus import Gpu


class Message:
    """What crosses the pipe."""

    named: ClassVar[dict[str, type[Any]]] = {}

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        Message.named[cls.__name__] = cls


class Interim(Message):
    """Says how far a request is, or a part of its answer: others follow."""


R = TypeVar("R")


class Repeatable:
    """Before `Request` among the bases: vLLM has one answer for it, whenever it is asked."""

    repeatable: ClassVar[bool] = True


class Request(Message, Generic[R]):
    """Is closed by one R. `sets_state`: it changes what the child makes of others. `repeatable`: an
    earlier answer stands.
    """

    sets_state: ClassVar[bool] = False
    repeatable: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        Message.named.setdefault(cls.reply().__name__, cls.reply())

    @classmethod
    def reply(cls) -> type[R]:
        """What closes it, as it is declared: `Request[R]`."""
        bases = cls.__orig_bases__  # type: ignore[attr-defined]
        found: type[R]
        (found,) = (argument for base in bases for argument in get_args(base))
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


@dataclass(frozen=True, slots=True)
class AskBudget(Repeatable, Request[Budget]):
    """vLLM's own MultiModalBudget for these engine arguments (underscored names).

    `build_dummy` also builds a dummy item of each modality, which may take gigabytes;
    `only_profiled` leaves out those that the profile does not run.
    """

    engine_args: dict[str, Any]
    build_dummy: bool
    only_profiled: bool = False


FailureKind = Literal["vllm", "not_multimodal", "not_installed", "moved"]


@dataclass(frozen=True, slots=True)
class Said(Interim):
    """A word on how far the request is: shown beside the progress bar."""

    text: str


@dataclass(frozen=True, slots=True)
class Done(Message):
    """The request is finished and has no other closing reply."""


@dataclass(frozen=True, slots=True)
class Failed(Message):
    """The request failed; `error` is vLLM's own message on one line. `exhausted` names what the
    child's machine ran out of, where that is why.
    """

    error: str
    kind: FailureKind = "vllm"
    exhausted: str = ""


@dataclass(frozen=True, slots=True)
class Looked(Message):
    """`device` is vLLM's own word, such as cuda or cpu; empty where it finds none. `free_bytes` of
    the GPU's `total_bytes`, both None without one. `failing` has the reason of every library that
    does not import.
    """

    device: str
    free_bytes: int | None
    total_bytes: int | None
    failing: dict[str, str]


@dataclass(frozen=True, slots=True)
class Look(Request[Looked]):
    """Import vLLM and what reaches into it, and ask where it would run."""


@dataclass(frozen=True, slots=True)
class OpenModel(Request[ModelInfo]):
    """Load config, tokenizer and processor of the checkpoint folder or cached hub model.

    `engine_args` are further ones that the server has. Without `tries` nothing is tried out: no
    knobs are looked for, and nothing is said of tiles.
    """

    sets_state: ClassVar[bool] = True

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


@dataclass(frozen=True, slots=True)
class Measure(Repeatable, Request[Done]):
    """Cost every subject under the setting; answered by one `Measured` each, in order."""

    setting: Setting
    subjects: tuple[Blank | File, ...]

    @property
    def of_files(self) -> bool:
        """Whether any is real."""
        return any(isinstance(subject, File) for subject in self.subjects)


@dataclass(frozen=True, slots=True)
class Measured(Interim):
    """The answer for subject `index`: a cost, or the reason why it is refused, by vLLM or because
    the host has no memory for it. `resampled` is how many samples a file of sound has at the
    model's rate, by vLLM's loader and by librosa; empty where they were not compared.
    """

    index: int
    cost: Cost | None
    refusal: str = ""
    refused_by: RefusedBy = "vllm"
    resampled: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Counted(Message):
    """Embeds per stand-in, None where vLLM's code for the model has no count of it; `sampled` as
    in `Cost`. `parts` as in `VllmCount`.
    """

    embeds: tuple[int | None, ...]
    sampled: tuple[tuple[int, ...], ...]
    parts: tuple[int | None, ...] = ()


@dataclass(frozen=True, slots=True)
class CountEmbeds(Repeatable, Request[Counted]):
    """Ask vLLM's own count of each stand-in's embeds, by its size."""

    setting: Setting
    subjects: tuple[Blank, ...]


@dataclass(frozen=True, slots=True)
class DevicesCompared(Message):
    """Both results; one that is None was refused for the reason in `refusal`."""

    cpu: Processed | None
    device: Processed | None
    refusal: str = ""


@dataclass(frozen=True, slots=True)
class CompareDevices(Request[DevicesCompared]):
    """Process the subject on the CPU, as served, and on `device` (torch's word).

    `warm` processes it once on each before, unmeasured: what a first run makes, later ones find.
    """

    setting: Setting
    subject: Blank | File
    device: str
    warm: bool = False


@dataclass(frozen=True, slots=True)
class Imagine(Request[Done]):
    """Put the child on an imaginary GPU for good. Must come before anything else is asked."""

    sets_state: ClassVar[bool] = True

    gpu: Gpu


@dataclass(frozen=True, slots=True)
class Rehearse(Repeatable, Request[Rehearsed]):
    """Run vLLM's startup on an imaginary GPU, as far as the size of its KV cache, then `steps`.

    The first one imagines the GPU, where `Imagine` has not; the child then answers for no other.
    `engine_args` has underscored names and the model's folder.
    """

    engine_args: dict[str, Any]
    gpu: Gpu
    steps: tuple[EncoderStep, ...] = ()


@dataclass(frozen=True, slots=True)
class ServeTraffic(Repeatable, Request[Traffic]):
    """Start vLLM's engine core and serve the requests, in their order, until all have answers.

    Without a `gpu` it is the engine of this machine, and nothing is known of its memory. Answers
    are made up: as long as each request says, of one token.
    """

    engine_args: dict[str, Any]
    requests: tuple[TrafficRequest, ...]
    arrivals: Arrivals
    gpu: Gpu | None


@dataclass(frozen=True, slots=True)
class ServeConfig(Message):
    """Every engine argument that the file sets, as the engine would see it after parsing; `values`
    are those of all arguments of `vllm serve`, its defaults among them. `reaching` are settings of
    the file, and not of the user, that import or run what they name, write or connect. `server`
    are the arguments of the API server alone that file or flags set.
    """

    engine_args: dict[str, Any]
    values: dict[str, Any] = field(default_factory=dict)
    reaching: tuple[str, ...] = ()
    server: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ParseServeConfig(Request[ServeConfig]):
    """Parse what `vllm serve` would be given: a YAML file, flags, or both (flags win). `written`
    are flags that a file of another form holds: the user's own go behind them.
    """

    path: str | None = None
    flags: tuple[str, ...] = ()
    written: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ServeOptions(Message):
    """Each option of `vllm serve` as it is spelled, without its dashes in front, and the name of
    the argument that it sets; and the names of all arguments of the engine.
    """

    arguments: dict[str, str]
    engine: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ListServeOptions(Request[ServeOptions]):
    """Which options `vllm serve` has."""


@dataclass(frozen=True, slots=True)
class EngineStarted(Message):
    """Figures read from inside the worker; bytes and seconds. None where not measured.

    `*_full_*` figures are scaled to the true depth: computed where the depth was cut. `gpu` is
    None on the CPU backend, where the peak is traced; elsewhere the peak is the worker's own.
    `computed_in` is the type that stood in for one that this CPU does not compute in.
    `most_step_tokens` is what one step of the encoder may have in the memory that is free here;
    None where that is all that vLLM profiles.
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


@dataclass(frozen=True, slots=True)
class StartEngine(Request[EngineStarted]):
    """Start the real engine with dummy weights and read its memory from inside.

    vLLM's own profile runs once more under an allocator trace, unless the estimate says that it
    takes longer than `profile_budget_s`. Where that is None it runs only where nothing else tells
    how long the encoder takes.
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
    """How one replayed prompt went: an error, for want of memory or not, or the item tokens that
    the engine counted.
    """

    origin: str
    error: str
    prompt_tokens: int
    item_tokens: tuple[int, ...]
    out_of_memory: bool = False


@dataclass(frozen=True, slots=True)
class Replayed(Message):
    """All answers of one burst, the seconds it took, and its largest encoder step in tokens; and
    what became of the prompts that were admitted only. `peak_bytes` is the most that torch held on
    a GPU above what it held before; None without one.
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


@dataclass(frozen=True, slots=True)
class Replay(Request[Replayed]):
    """Submit all prompts at once to the started engine, as one burst. Those to `admit` only go
    through its input processing before, and are not answered.
    """

    prompts: tuple[ReplayPrompt, ...]
    admit: tuple[ReplayPrompt, ...] = ()


@dataclass(frozen=True, slots=True)
class TextsCounted(Message):
    """Tokens per request, or vLLM's words where it refuses one."""

    tokens: tuple[int | str, ...]


@dataclass(frozen=True, slots=True)
class CountTexts(Repeatable, Request[TextsCounted]):
    """Count what each bare request takes beside the placeholders of its items."""

    requests: tuple[ChatRequest, ...]


@dataclass(frozen=True, slots=True)
class TextsSplit(Message):
    """The prompt of each request, None where vLLM refuses it."""

    prompts: tuple[SplitPrompt | None, ...]


@dataclass(frozen=True, slots=True)
class SplitTexts(Repeatable, Request[TextsSplit]):
    """Tokenize what stands before, between and after the items of each bare request."""

    requests: tuple[ChatRequest, ...]


@dataclass(frozen=True, slots=True)
class BoundTexts(Repeatable, Request[TextBound]):
    """Find what bounds the text of any request."""

    modalities: tuple[Modality, ...]


@dataclass(frozen=True, slots=True)
class CountingFound(Message):
    """None where transformers does not come to vLLM's numbers; `why` says which part is left out,
    too.
    """

    counting: TextCounting | None
    why: str = ""


@dataclass(frozen=True, slots=True)
class FindCounting(Repeatable, Request[CountingFound]):
    """Find how transformers counts texts without vLLM."""

    modalities: tuple[Modality, ...]


@dataclass(frozen=True, slots=True)
class GrammarFound(Message):
    """As `mmcalib.corpus.grammar` reads it."""

    grammar: dict[str, Any]


@dataclass(frozen=True, slots=True)
class AskGrammar(Repeatable, Request[GrammarFound]):
    """Ask for the schema of chat requests, the types of parts, and what stands for an item."""

    modalities: tuple[Modality, ...]
