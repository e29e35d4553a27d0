"""One option as a field of a dataclass: what the command line shows, its bounds, and its error."""

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
    """Of a number, named as in annotated_types; `holds` of any other value. It is their
    GroupedMetadata by protocol, so that pydantic reads it, and showing help does not import them.
    """

    __is_annotated_types_grouped_metadata__ = True

    def __init__(self, *, holds: Callable[[Any], bool] | None = None, **interval: float) -> None:
        self._holds, self._interval = holds, interval

    def __iter__(self) -> Iterator[object]:
        from annotated_types import Interval, Predicate

        yield from Interval(**self._interval)
        yield from [Predicate(self._holds)] if self._holds else []


@dataclass(frozen=True, slots=True)
class Option:
    """An option or argument of a command. The field that it is assigned to gives its name and type.

    `annotation` has bounds, which `value_type` lacks. `words_type` is the type of the words where
    Typer cannot parse the value's own, and `read` makes the value of them or raises UsageError.
    `spelled` are the spellings, unless the only one is the name with dashes. `wrong` is the error
    line of a value out of bounds, with `{option}` and `{given}`; `least` is a bound that Typer
    shows and checks. A first run may need a `basic` option, so `run --help` shows it; the others
    only `run --help-all` does. `eager` gets Typer's context and the value before all else is read.
    """

    metavar: str | None
    help: str
    default: Any = None
    spelled: tuple[str, ...] = ()
    words_type: Any = None
    read: Callable[[Any], Any] = lambda words: words
    wrong: str = "{option} {given}: no such choice"
    hint: str = ""
    least: float | None = None
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
        """The words of a closed choice; empty for other values."""
        return get_args(self.value_type) if get_origin(self.value_type) is Literal else ()


def option(metavar: str, text: str, default: Any = None, **more: Any) -> Any:
    """An option of one value, or of several if its type is a list; `more` as `Option` has it."""
    return Option(metavar, text, default, **more)


def switch(text: str, *spelled: str, **more: Any) -> Any:
    """An option without a value: True where it is given."""
    return Option(None, text, default=False, spelled=spelled, **more)


def argument(metavar: str, text: str, default: Any = None, **more: Any) -> Any:
    """A value, or several, that no option stands before. The default MISSING requires it."""
    return Option(metavar, text, default, is_argument=True, **more)


@dataclass_transform(kw_only_default=True, frozen_default=True)
def options(kind: type[T]) -> type[T]:
    """Class decorator: a frozen dataclass of options, and of other such classes."""
    for name, one in list(vars(kind).items()):
        if isinstance(one, Option):
            setattr(kind, name, field(default=one.default, metadata={"option": one}))
    return dataclass(frozen=True, slots=True, kw_only=True)(kind)


def _members(kind: type) -> dict[str, Option | type]:
    """By the name of its field: an option, with its name and type, or another class of options."""
    annotations, types = get_type_hints(kind, include_extras=True), get_type_hints(kind)
    found: dict[str, Option | type] = {}
    for one in fields(kind):
        found[one.name] = types[one.name]
        if one.metadata:
            found[one.name] = replace(
                one.metadata["option"],
                name=one.name,
                annotation=annotations[one.name],
                value_type=_without_none(types[one.name]),
            )
    return found


def options_of(kind: type) -> Iterator[Option]:
    """The options of such a class, and of the classes that it has for fields, in order."""
    for member in _members(kind).values():
        if isinstance(member, Option):
            yield member
        else:
            yield from options_of(member)


def _without_none(kind: Any) -> Any:
    if get_origin(kind) not in (Union, UnionType):
        return kind
    return Union[tuple(part for part in get_args(kind) if part is not NoneType)]  # noqa: UP007


def read_words(options: Iterable[Option], words: Mapping[str, Any]) -> dict[str, Any]:
    """The values that the command line gives: None, False and [] give none. Raises UsageError."""
    return {
        one.name: one.read(said)
        for one in options
        if not ((said := words[one.name]) is None or said is False or said == [])
    }


def make_options(kind: type[T], values: Mapping[str, Any]) -> T:
    """The options of a class among these values. Raises UsageError for the first wrong one."""
    own: dict[str, Any] = {}
    for name, member in _members(kind).items():
        if not isinstance(member, Option):
            own[name] = make_options(member, values)
        elif name in values:
            own[name] = _validate(member, values[name])
    return kind(**own)


def _validate(own: Option, value: Any) -> Any:
    # The command line shows its help without it.
    from pydantic import TypeAdapter, ValidationError

    try:
        return TypeAdapter(own.annotation).validate_python(value)
    except ValidationError as error:
        # Of the forms that a value may have, the one that was meant fails deepest.
        deepest = max(error.errors(include_url=False), key=lambda found: len(found["loc"]))
        spelling = own.spellings[0]
        message = own.wrong.format(option=spelling, given=deepest["input"])
        hint = own.hint.format(option=spelling) or f"one of {', '.join(own.choices)}"
        raise UsageError(message, hint=hint) from None
