"""A check, what it is known by, and its remedies as flags or as lines of YAML."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Literal, TypeVar

from mmcalib.checks.catalogue import CheckId
from mmcalib.domain.knobs import Knob, Value, merged_nested
from mmcalib.domain.shapes import Modality
from mmcalib.text import flag, gib

Status = Literal["pass", "warn", "fail", "skip"]
Verdict = Literal["pass", "fail"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Taken:
    """A row of the memory table: at most so many bytes, *computed*."""

    what: str
    nbytes: int


@dataclass(frozen=True, slots=True)
class Check:
    """`remedy` has one alternative a line, the harmless one first; it is empty where nothing needs
    doing. `names` are the parts of its words that are names of files, or foreign and may hold some:
    a redacted report replaces them. `taken` is the memory that an option takes beside the profile.
    """

    id: CheckId
    status: Status
    detail: str
    remedy: str = ""
    names: tuple[str, ...] = ()
    taken: Taken | None = None

    @property
    def code(self) -> str:
        return self.id.code

    @property
    def name(self) -> str:
        return self.id.name


def verdict(checks: Iterable[Check]) -> Verdict:
    """One failed check is a no; warnings and skipped checks are not."""
    return "fail" if any(check.status == "fail" for check in checks) else "pass"


@dataclass(frozen=True, slots=True)
class OptionFacts:
    """What decides about options that take memory beside the profile: all arguments of `vllm serve`
    as `served`, those of its front end among them; the size of the vocabulary (0: unknown); and
    from a rehearsal, None without one, bytes above the model.

    `encoder_peak_bytes` are of the `encoder_tokens` that the profile encodes, `step_bytes` of the
    worst step of each modality; `runner` is vLLM's, `V1` or `V2`.
    """

    served: Mapping[str, Any] = field(default_factory=dict)
    vocab_size: int = 0
    encoder_peak_bytes: int | None = None
    encoder_tokens: int = 0
    step_bytes: Mapping[Modality, int] = field(default_factory=dict)
    encoder_cache_bytes: int | None = None
    activation_peak_bytes: int | None = None
    runner: str = ""


def size(nbytes: int | None) -> str:
    """Such as ` (2.10 GiB, computed)`; nothing where it is not known."""
    return "" if nbytes is None else f" ({gib(nbytes)}, computed)"


class Dialect(Enum):
    """The words of a remedy: `FLAGS` of `mmcalib run`, or `LINES` of the file under `validate`."""

    FLAGS = "flags"
    LINES = "lines"

    def say(self, *, flags: T, lines: T) -> T:
        """The one of both that this dialect has."""
        return flags if self is Dialect.FLAGS else lines

    def number(self, value: int) -> str:
        return self.say(flags=f"{value}", lines=f"{value:,}")

    def setting(self, name: str, value: Any) -> str:
        """What sets an option of vLLM by that name."""
        return self.say(flags=f"{flag(name)} {value}", lines=line(name, value))


def line(name: str, value: Any) -> str:
    """One setting on one line of YAML, such as `limit-mm-per-prompt: {video: 0}`."""
    import yaml  # documents, which have no remedies to word, read verdicts from here

    words = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=1 << 30)
    words = words.removesuffix("\n").removesuffix("\n...")
    return f"{name.replace('_', '-')}: {words}"


def line_of(knob: Knob, value: Value, engine_args: Mapping[str, Any]) -> str:
    """The line that gives a knob this value in its model's spelling, beside what is set there."""
    return line(knob.argument, merged_nested(engine_args.get(knob.argument), knob.kwargs(value)))
