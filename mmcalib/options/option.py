"""One option as the metadata of a field: what the command line shows, its bounds, and its error."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields
from inspect import Parameter
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Self, TypeVar, Union, get_args, get_origin

from mmcalib.errors import UsageError

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Of a number; `holds` of any other value. It is annotated_types' GroupedMetadata by protocol,
    so that pydantic reads it, and showing help does not import them.
    """

    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None
    below: float | None = None
    holds: Callable[[Any], bool] | None = None

    @property
    def __is_annotated_types_grouped_metadata__(self) -> bool:
        return True

    def __iter__(self) -> Iterator[object]:
        from annotated_types import Ge, Gt, Le, Lt, Predicate

        if self.at_least is not None:
            yield Ge(self.at_least)
        if self.above is not None:
            yield Gt(self.above)
        if self.at_most is not None:
            yield Le(self.at_most)
        if self.below is not None:
            yield Lt(self.below)
        if self.holds is not None:
            yield Predicate(self.holds)


@dataclass(frozen=True, slots=True)
class Words:
    """How the command line says a value that Typer has no type for.

    `read` makes the value; it raises ValueError with what is `wrong`, as the option's own `wrong`.
    """

    type: Any
    read: Callable[[Any], Any] = lambda words: words
    wrong: str = ""
    hint: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """What is said of an option beyond its name, type, bounds and default.

    `spelled` where that is not the name with dashes. `wrong` is the error line of a value out of
    bounds, with `{option}` and `{given}`. `basic`: a first run may need it, so `run --help` shows
    it; the others only `run --help-all` does.
    """

    help: str
    metavar: str | None = None
    spelled: tuple[str, ...] = ()
    words: Words | None = None
    wrong: str = "{option} {given}: no such choice"
    hint: str = ""
    basic: bool = False


@dataclass(frozen=True, slots=True)
class OptionField:
    """An option with the name, annotation and default that its field, or parameter, gives it."""

    name: str
    annotation: Any
    option: Option
    default: Any

    @property
    def spelling(self) -> str:
        spelled = self.option.spelled or (f"--{self.name.replace('_', '-')}",)
        return spelled[0]

    @property
    def choices(self) -> tuple[str, ...]:
        """The words of a closed choice; empty for other values."""
        kind = self.type
        return get_args(kind) if get_origin(kind) is Literal else ()

    @property
    def type(self) -> Any:
        """Of the value, where it is given."""
        bare = unannotated(self.annotation)
        if get_origin(bare) not in (Union, UnionType):
            return bare
        given = [unannotated(kind) for kind in get_args(bare) if kind is not NoneType]
        return Union[tuple(given)]  # noqa: UP007 - of a tuple that is known here only


class Options:
    """A dataclass all of whose fields are options; a command that takes it has them."""

    __slots__ = ()

    @classmethod
    def of_words(cls, given: Mapping[str, Any]) -> Self:
        """As the command line gives them: what is None, False or empty there says nothing. Raises
        UsageError.
        """
        said = {}
        for field in options_of(cls):
            value = given[field.name]
            if not (value is None or value is False or value == []):
                said[field.name] = _read(field, value)
        return checked(cls, said)


def unannotated(annotation: Any) -> Any:
    return get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation


def option_of(annotation: Any) -> Option | None:
    """The option that an annotation holds, if any."""
    held = get_args(annotation)[1:] if get_origin(annotation) is Annotated else ()
    return next((part for part in held if isinstance(part, Option)), None)


def options_of(kind: type) -> Iterator[OptionField]:
    """The options of a dataclass whose annotations are not put off, in its order."""
    for field in fields(kind):
        option = option_of(field.type)
        if option is None:
            raise TypeError(f"{kind.__name__}.{field.name} is no option")
        default = Parameter.empty if field.default is MISSING else field.default
        yield OptionField(field.name, field.type, option, default)


def checked(kind: type[T], values: Mapping[str, Any]) -> T:
    """The dataclass of options with these values. Raises UsageError for the first that is wrong."""
    named = (field for field in options_of(kind) if field.name in values)
    return kind(**{field.name: _valid(field, values[field.name]) for field in named})


def _valid(field: OptionField, value: Any) -> Any:
    # The command line shows its help without it.
    from pydantic import TypeAdapter, ValidationError

    try:
        return TypeAdapter(field.annotation).validate_python(value)
    except ValidationError as error:
        # Of the forms that a value may have, the one that was meant fails deepest.
        deepest = max(error.errors(include_url=False), key=lambda found: len(found["loc"]))
        message = field.option.wrong.format(option=field.spelling, given=deepest["input"])
        hint = field.option.hint.format(option=field.spelling)
        raise UsageError(message, hint=hint or f"one of {', '.join(field.choices)}") from None


def _read(field: OptionField, given: Any) -> Any:
    words = field.option.words
    if words is None:
        return given
    try:
        return words.read(given)
    except ValueError as error:
        message = words.wrong.format(option=field.spelling, given=error)
        raise UsageError(message, hint=words.hint) from None
