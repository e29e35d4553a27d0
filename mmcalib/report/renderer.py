"""What every output format is: a text made of a document, and how the file's name ends."""

from __future__ import annotations

from typing import Protocol, TypeVar

D = TypeVar("D", contravariant=True)


class Renderer(Protocol[D]):
    """Its name is that of the module which has it as `RENDERER`."""

    @property
    def suffix(self) -> str:
        """Without the first dot."""

    def render(self, document: D, /) -> str:
        """The file's content. Raises OutputError for what the format cannot carry."""
