"""One option as a dataclass field: its help text, its bounds, and its error."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from types import NoneType, UnionType
from typing import (
    Any,
    Literal,
    TypeVar,
    Union,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

from mmcalib.errors import UsageError

T = TypeVar("T")


class Bounds:
    """Bounds as pydantic's GroupedMetadata, so that `--help` need not import annotated_types."""

    __is_annotated_types_grouped_metadata__ = True

    def __init__(self, *, holds: Callable[[Any], bool] | None = None, **interval: float) -> None:
        self._holds, self._interval = holds, interval

    def __iter__(self) -> Iterator[object]:
        from annotated_types import Interval, Predicate

        yield from Interval(**self._interval)
        yield from [Predicate(self._holds)] if self._holds else []


@dataclass(frozen=True, slots=True)
class Option:
    """An option or argument of a command. Its dataclass field gives the name and type.

    `annotation` includes the bounds, `value_type` does not. If Typer cannot parse the value's type,
    it parses `words_type`, and `read` converts that or raises UsageError. `spelled` overrides the
    default spelling, the name with dashes. `wrong` is the error for a value out of bounds, with
    `{option}` and `{given}`. `run --help` shows only `basic` options, `run --help-all` shows all.
    `eager` gets Typer's context and the value before the other options are read.
    """

    metavar: str | None
    help: str
    default: Any = None
    spelled: tuple[str, ...] = ()
    words_type: Any = None
    read: Callable[[Any], Any] = lambda words: words
    wrong: str = "{option} {given}: no such choice"
    hint: str = ""
    basic: bool = False
    is_argument: bool = False
    eager: Callable[[Any, bool], None] | None = None
    name: str = ""
    annotation: Any = None
    value_type: Any = None

    @property
    def spellings(self) -> tuple[str, ...]:
        return self.spelled or (f"--{self.name.replace('_', '-')}",)

    @property
    def choices(self) -> tuple[str, ...]:
        """The words of a Literal; empty for other types."""
        return get_args(self.value_type) if get_origin(self.value_type) is Literal else ()


def option(metavar: str, text: str, default: Any = None, **more: Any) -> Any:
    """An option with a value, or with several if its type is a list; `more`: see `Option`."""
    return Option(metavar, text, default, **more)


def switch(text: str, *spelled: str, **more: Any) -> Any:
    """An option without a value; True if given."""
    return Option(None, text, default=False, spelled=spelled, **more)


def argument(metavar: str, text: str, default: Any = None, **more: Any) -> Any:
    """A positional argument. With the default MISSING it is required."""
    return Option(metavar, text, default, is_argument=True, **more)


@dataclass_transform(kw_only_default=True, frozen_default=True)
def options(kind: type[T]) -> type[T]:
    """Class decorator: a frozen dataclass of options and of other option classes."""
    for name, one in list(vars(kind).items()):
        if isinstance(one, Option):
            setattr(kind, name, field(default=one.default, metadata={"option": one}))
    return dataclass(frozen=True, slots=True, kw_only=True)(kind)


def _members(kind: type) -> dict[str, Option | type]:
    """Map each field to its option, with name and type, or to its class of options."""
    annotations, types = get_type_hints(kind, include_extras=True), get_type_hints(kind)
    members: dict[str, Option | type] = {}
    for one in fields(kind):
        members[one.name] = types[one.name]
        if one.metadata:
            members[one.name] = replace(
                one.metadata["option"],
                name=one.name,
                annotation=annotations[one.name],
                value_type=_without_none(types[one.name]),
            )
    return members


def iter_options(kind: type) -> Iterator[Option]:
    """Yield the options of a class and of its nested option classes, in order."""
    for member in _members(kind).values():
        if isinstance(member, Option):
            yield member
        else:
            yield from iter_options(member)


def _without_none(kind: Any) -> Any:
    if get_origin(kind) not in (Union, UnionType):
        return kind
    return Union[tuple(part for part in get_args(kind) if part is not NoneType)]  # noqa: UP007


def read_words(options: Iterable[Option], words: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the words of the command line; None, False and [] mean not given."""
    return {
        one.name: one.read(given)
        for one in options
        if not ((given := words[one.name]) is None or given is False or given == [])
    }


def make_options(kind: type[T], values: Mapping[str, Any]) -> T:
    """Build an option class from these values. Raises UsageError for the first invalid one."""
    valid: dict[str, Any] = {}
    for name, member in _members(kind).items():
        if not isinstance(member, Option):
            valid[name] = make_options(member, values)
        elif name in values:
            valid[name] = _validate(member, values[name])
    return kind(**valid)


def _validate(own: Option, value: Any) -> Any:
    # Imported here, so that `--help` does not load pydantic.
    from pydantic import TypeAdapter, ValidationError

    try:
        return TypeAdapter(own.annotation).validate_python(value)
    except ValidationError as error:
        # In a union, the type that the user meant fails at the deepest path.
        deepest = max(error.errors(include_url=False), key=lambda one: len(one["loc"]))
        spelling = own.spellings[0]
        message = own.wrong.format(option=spelling, given=deepest["input"])
        hint = own.hint.format(option=spelling) or f"one of {', '.join(own.choices)}"
        raise UsageError(message, hint=hint) from None
