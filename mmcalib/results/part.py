"""DocumentPart, Label, errors of documents, CheckResult."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, Literal, Self, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from mmcalib.checks import catalogue as ids
from mmcalib.text import several


class DocumentPart(BaseModel):
    """Does not change, and knows every field: a file of another version is refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())

    @classmethod
    def showing(cls, value: object, **more: Any) -> Self:
        """With the value's fields of the same names, and `more`, which go before those."""
        shared = (n for n in cls.model_fields if n not in more and hasattr(value, n))
        return cls(**{name: getattr(value, name) for name in shared}, **more)


def complaint(error: ValidationError, *behind: str | int) -> str:
    """The first thing that is wrong, and where, from the place of the part that was validated."""
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    where = ".".join(str(step) for step in (*behind, *first["loc"]))
    return ": ".join(filter(None, (where, first["msg"])))


def said_of(error: ValueError | RecursionError) -> str:
    """What is wrong with a file that is no such document."""
    if isinstance(error, ValidationError):
        return complaint(error)
    return str(error) if type(error) is ValueError else f"not JSON: {error}"


T = TypeVar("T")

# Fields of shapes, and of the rules that bound what shapes cost.
_NAMES: Final = (
    *("width_px", "height_px", "num_frames", "fps", "num_samples", "sample_rate_hz"),
    *("factor_px", "max_px", "max_aspect", "together", "rate_hz"),
)


def _positive(one: T) -> T:
    for name in _NAMES:
        if getattr(one, name, 1) <= 0:
            raise ValueError(f"{name} must be above 0")
    if area := getattr(one, "area", None):
        _positive(area)
    return one


POSITIVE: Final = AfterValidator(_positive)


class CheckResult(DocumentPart):
    """`code` names the check for good: `mmcalib list checks` explains it. `names` are the parts of
    its words that are file names, or that come from elsewhere and may contain some.
    """

    name: str
    status: Literal["pass", "warn", "fail", "skip"]
    detail: str
    remedy: str = ""
    names: list[str] = Field(default_factory=list)
    code: str = ""

    @property
    def remedies(self) -> list[str]:
        """The alternatives, the harmless one first."""
        return self.remedy.splitlines()


def verdict_words(verdict: str, checks: Iterable[CheckResult], losses: Sequence[str] = ()) -> str:
    """A verdict with what it depends on and costs: `pass, on 1 assumption · 2 warnings`. An
    assumption that changes no setting is left out.
    """
    if verdict == "fail":
        return verdict
    checks = list(checks)
    warned = [check for check in checks if check.status == "warn"]
    moving = {one.code for one in ids.MOVING_ASSUMPTIONS}
    assumptions = sum(check.code in moving for check in warned)
    others = sum(check.code != ids.ASSUMED_LOAD.code for check in warned) - assumptions
    words = [f"{verdict}, on {several(assumptions, 'assumption')}" if assumptions else verdict]
    words += [check.name for check in checks if check.code == ids.KEEP_DEFAULTS.code]
    words += losses
    words += [several(others, "warning")] if others else []
    words += [check.name for check in checks if check.code == ids.NOT_STARTED_WITH.code]
    return " · ".join(words)


def first_failed(checks: Iterable[CheckResult]) -> CheckResult:
    """The check to name when the verdict is fail."""
    return next(check for check in checks if check.status == "fail")
