"""Base class of the document models, check results, and error texts of documents."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, Literal, Self, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from mmcalib.checks import catalogue as ids
from mmcalib.errors import first_error
from mmcalib.text import plural


class DocumentPart(BaseModel):
    """Base class: immutable, and rejects unknown keys, such as those of another version."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())
    __str__ = object.__str__

    @classmethod
    def from_value(cls, *values: object, **more: Any) -> Self:
        """Copy each field from the first value with one of its name; `more` overrides them."""
        pairs = [(name, value) for value in reversed(values) for name in cls.model_fields]
        shared = {n: value for n, value in pairs if n not in more and hasattr(value, n)}
        return cls(**{name: getattr(value, name) for name, value in shared.items()}, **more)


def error_text(error: ValueError | RecursionError) -> str:
    """Return why a file is not a valid document."""
    if isinstance(error, ValidationError):
        return first_error(error)
    return str(error) if type(error) is ValueError else f"not JSON: {error}"


T = TypeVar("T")

# Fields of shapes and of cost rules.
_POSITIVE_FIELDS: Final = (
    *("width_px", "height_px", "num_frames", "fps", "num_samples", "sample_rate_hz"),
    *("factor_px", "max_px", "max_aspect", "together", "rate_hz"),
)


def _check_positive(value: T) -> T:
    for name in _POSITIVE_FIELDS:
        if getattr(value, name, 1) <= 0:
            raise ValueError(f"{name} must be above 0")
    if area := getattr(value, "area", None):
        _check_positive(area)
    return value


POSITIVE: Final = AfterValidator(_check_positive)


class CheckResult(DocumentPart):
    """The result of one check."""

    name: str
    status: Literal["pass", "warn", "fail", "skip"]
    detail: str
    remedy: str = Field(default="", description="One alternative per line")
    names: list[str] = Field(default_factory=list, description="Parts that may hold file names")
    code: str = Field(default="", description="Stable; `mmcalib list checks` explains it")

    @property
    def remedies(self) -> list[str]:
        """The alternatives, the safest first."""
        return self.remedy.splitlines()


def verdict_words(verdict: str, checks: Iterable[CheckResult], losses: Sequence[str] = ()) -> str:
    """A verdict with what it depends on and costs: `pass, with 1 assumption · 2 warnings`."""
    if verdict == "fail":
        return verdict
    checks = list(checks)
    assumptions, others = count_warned(checks)
    words = [f"{verdict}, with {plural(assumptions, 'assumption')}" if assumptions else verdict]
    words += [check.name for check in checks if check.code == ids.KEEP_DEFAULTS.code]
    words += losses
    words += [plural(others, "warning")] if others else []
    words += [check.name for check in checks if check.code == ids.NOT_STARTED_WITH.code]
    return " · ".join(words)


def count_warned(checks: Iterable[CheckResult]) -> tuple[int, int]:
    """Return how many assumptions a setting depends on, and how many other warnings there are."""
    warned = [check.code for check in checks if check.status == "warn"]
    moving = {ids.ASSUMED_COUNT.code, ids.ASSUMED_ANSWER.code, ids.ASSUMED_BATCH.code}
    assumptions = sum(code in moving for code in warned)
    return assumptions, len(warned) - assumptions


def first_failed(checks: Iterable[CheckResult]) -> CheckResult:
    """The check to name when the verdict is fail."""
    return next(check for check in checks if check.status == "fail")
