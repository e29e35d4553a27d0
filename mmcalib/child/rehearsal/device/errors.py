"""What an imaginary GPU cannot answer."""

from __future__ import annotations


class NoFakeImplementation(RuntimeError):  # noqa: N818 - what happened, not what kind
    """An operation whose result's shape nobody described: it cannot be rehearsed.

    The message names the operation, and the module of the model that asked for it.
    """

    def __init__(self, operation: str, module: str, why: str) -> None:
        self.operation = operation
        where = f" (in {module})" if module else ""
        super().__init__(f"{operation} has no fake implementation{where}: {why}")
