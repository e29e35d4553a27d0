"""What `with` closes at its end."""

from __future__ import annotations

from typing import Self


class Closing:
    """A class with `close`, which is safe to call twice, and nothing else to do at the end."""

    __slots__ = ()

    def close(self) -> None:
        """End whatever was started."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
