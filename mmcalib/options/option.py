"""One option as the metadata of a field: what the command line shows, and the line of its error."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields
from inspect import Parameter
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Self, Union, get_args, get_origin


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
        """As the command line gives them. Raises UsageError."""
        from mmcalib.options.checked import checked, from_words

        return checked(cls, from_words(options_of(cls), given))


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
