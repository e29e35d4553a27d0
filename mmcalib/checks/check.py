"""Check, CheckId, traps, remedies as flags or YAML."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, Protocol, TypeVar

from mmcalib.domain.memory import Budget
from mmcalib.domain.shapes import Modality
from mmcalib.text import gib

Status = Literal["pass", "warn", "fail", "skip"]
Verdict = Literal["pass", "fail"]

# The check, and the verdict, where nothing beats vLLM's own settings.
KEEP: Final = "keep vLLM's defaults"
# The names of checks of what was assumed begin so.
ASSUMED: Final = "assumed "
# And of what no engine was started with here.
NOT_STARTED: Final = "not started with"


class NamedCheck(Protocol):
    """A check of a document, which has its name alone."""

    @property
    def name(self) -> str: ...


N = TypeVar("N", bound=NamedCheck)


@dataclass(frozen=True, slots=True)
class CheckId:
    """What a check is known by. The `pattern` of one that there may be several of has `{}` for the
    modality or the setting that it is `about`.
    """

    pattern: str
    about: str = ""

    @property
    def name(self) -> str:
        return self.pattern.format(self.about)

    def of(self, about: str) -> CheckId:
        return replace(self, about=about)

    def covers(self, other: CheckId) -> bool:
        """Whether the other is this one, whatever it is about."""
        return self.pattern == other.pattern

    def among(self, checks: Iterable[N]) -> Iterator[N]:
        return (check for check in checks if check.name == self.name)


@dataclass(frozen=True, slots=True)
class Check:
    """`remedy` has one alternative a line, the harmless one first; it is empty where nothing needs
    doing. `names` are the parts of its words that are names of files, or foreign and may hold some:
    a redacted report replaces them.
    """

    id: CheckId
    status: Status
    detail: str
    remedy: str = ""
    names: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.id.name


def verdict(checks: Iterable[Check]) -> Verdict:
    """One failed check is a no; warnings and skipped checks are not."""
    return "fail" if any(check.status == "fail" for check in checks) else "pass"


@dataclass(frozen=True, slots=True)
class Taken:
    """A row of the memory table: at most so many bytes, *computed*."""

    what: str
    nbytes: int


@dataclass(frozen=True, slots=True)
class Trap:
    """A finding, and the memory that it takes where that is known."""

    check: Check
    taken: Taken | None = None


@dataclass(frozen=True, slots=True)
class Figures:
    """What is known of a configuration: vLLM's budget with its dummies, items per prompt, the size
    of the vocabulary (0: unknown), and from a rehearsal, None without one, bytes above the model.

    `encoder_peak_bytes` are of the `encoder_tokens` that the profile encodes, `step_bytes` of the
    worst step of each modality; `runner` is vLLM's, `V1` or `V2`.
    """

    budget: Budget
    counts: Mapping[Modality, int]
    vocab_size: int = 0
    encoder_peak_bytes: int | None = None
    encoder_tokens: int = 0
    step_bytes: Mapping[Modality, int] = field(default_factory=dict)
    encoder_cache_bytes: int | None = None
    activation_peak_bytes: int | None = None
    runner: str = ""


@dataclass(frozen=True, slots=True)
class TrapRule:
    """`find` is given the engine arguments, and `of_server` all arguments of `vllm serve`, those of
    its front end among them; `place` is the one among the others.
    """

    place: int
    find: Callable[[Mapping[str, Any], Figures], Trap | None]
    of_server: bool = False


def size(nbytes: int | None) -> str:
    """Such as ` (2.10 GiB, computed)`; nothing where it is not known."""
    return "" if nbytes is None else f" ({gib(nbytes)}, computed)"
