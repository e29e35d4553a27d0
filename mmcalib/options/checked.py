"""Options checked by pydantic, from the same annotations that the command line is made of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from mmcalib.errors import UsageError
from mmcalib.options.option import OptionField, options_of

T = TypeVar("T")


def checked(kind: type[T], values: Mapping[str, Any]) -> T:
    """The dataclass of options with these values. Raises UsageError for the first that is wrong."""
    named = (field for field in options_of(kind) if field.name in values)
    return kind(**{field.name: _valid(field, values[field.name]) for field in named})


def _valid(field: OptionField, value: Any) -> Any:
    try:
        return TypeAdapter(field.annotation).validate_python(value)
    except ValidationError as error:
        # Of the forms that a value may have, the one that was meant fails deepest.
        deepest = max(error.errors(include_url=False), key=lambda found: len(found["loc"]))
        message = field.option.wrong.format(option=field.spelling, given=deepest["input"])
        hint = field.option.hint.format(option=field.spelling)
        raise UsageError(message, hint=hint or f"one of {', '.join(field.choices)}") from None


def from_words(options: Iterable[OptionField], words: Mapping[str, Any]) -> dict[str, Any]:
    """What the command line says: what is None, False or empty there says nothing.

    Raises UsageError for words that are no value.
    """
    said = {}
    for field in options:
        given = words[field.name]
        if given is None or given is False or given == []:
            continue
        said[field.name] = _read(field, given)
    return said


def _read(field: OptionField, given: Any) -> Any:
    words = field.option.words
    if words is None:
        return given
    try:
        return words.read(given)
    except ValueError as error:
        message = words.wrong.format(option=field.spelling, given=error)
        raise UsageError(message, hint=words.hint) from None
