"""What messages have in common: a name on the wire and, of a request, the reply that it gets."""

from __future__ import annotations

from functools import cache
from typing import Any, ClassVar, Generic, TypeVar, get_args

from pydantic import TypeAdapter


class Message:
    """One line on the pipe: the name of its class, then its fields as JSON."""

    named: ClassVar[dict[str, type[Message]]] = {}

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        Message.named[cls.__name__] = cls


class Reply(Message):
    """Closes a request."""


class Interim(Message):
    """Says how far a request is, or a part of its answer: others follow."""


R = TypeVar("R", bound=Reply)


class Repeatable:
    """Before `Request` among the bases: vLLM has one answer for it, whenever it is asked."""

    repeatable: ClassVar[bool] = True


class Request(Message, Generic[R]):
    """Is closed by one R. `sets_state`: it changes what the child makes of others. `repeatable`: an
    earlier answer stands.
    """

    sets_state: ClassVar[bool] = False
    repeatable: ClassVar[bool] = False

    @classmethod
    def reply(cls) -> type[R]:
        for base in cls.__orig_bases__:  # type: ignore[attr-defined]
            for argument in get_args(base):
                found: type[R] = argument
                return found
        raise TypeError(f"{cls.__name__} does not say by what it is closed")


def encode(message: Message) -> bytes:
    name = type(message).__name__
    return name.encode() + b"\n" + _adapter(name).dump_json(message)


def decode(line: bytes) -> Message:
    """Raises ValueError or KeyError for what `encode` did not make."""
    name, _, fields = line.partition(b"\n")
    message: Message = _adapter(name.decode()).validate_json(fields)
    return message


@cache
def _adapter(name: str) -> TypeAdapter[Any]:
    return TypeAdapter(Message.named[name])
