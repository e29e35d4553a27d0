"""What every part of a document that is kept has in common."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Part(BaseModel):
    """Does not change, and knows every field: a file of another version is refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())
