"""What every part of a document that is kept has in common."""

from __future__ import annotations

from typing import Self

from pydantic import BaseModel, ConfigDict, ValidationError


class DocumentPart(BaseModel):
    """Does not change, and knows every field: a file of another version is refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())

    @classmethod
    def showing(cls, value: object) -> Self:
        """What a value of the domain says, field by field of the same name."""
        return cls.model_validate(value, from_attributes=True)


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
