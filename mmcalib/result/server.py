"""What the server lets in, as `calibration.json` keeps it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

from pydantic import Field

from mmcalib.domain.server import VARIABLES, Server
from mmcalib.result.part import DocumentPart


def with_variables(values: Mapping[str, int], command: str) -> str:
    """The command with these in its environment, as a shell reads it."""
    return " ".join([*(f"{name}={value}" for name, value in values.items()), command])


class ServerPart(DocumentPart):
    """`limits` by vLLM's environment variables, `given` those that were set when it was asked;
    `decodes` by video codec. With `needed` in its environment it would also take the items of the
    corpus that were left out.
    """

    limits: dict[str, int]
    given: list[str] = Field(default_factory=list)
    decodes: dict[str, bool] = Field(default_factory=dict)
    lone_frames: bool = True
    torchcodec: bool = False
    needed: dict[str, int] = Field(default_factory=dict)
    label: Literal["measured"] = "measured"

    @classmethod
    def of(cls, server: Server, needed: dict[str, int]) -> ServerPart:
        return cls(
            limits=dict(server.limits),
            given=list(server.given),
            decodes=dict(server.decodes),
            lone_frames=server.lone_frames,
            torchcodec=server.torchcodec,
            needed=needed,
        )

    @property
    def server(self) -> Server:
        return Server(
            self.limits, tuple(self.given), self.decodes, self.lone_frames, self.torchcodec
        )

    @property
    def environment(self) -> dict[str, int]:
        """What a server must have in its environment to let in what this one does. Other variables
        than mmcalib's own are left out: the file may come from somebody else.
        """
        return {n: self.limits[n] for n in VARIABLES if n in self.given and n in self.limits}

    @property
    def wanting(self) -> dict[str, int]:
        """What it would need beside that for the items that were left out."""
        return {n: self.needed[n] for n in VARIABLES if n in self.needed}


SERVE: Final = "vllm serve --config engine.yaml"


def serving(server: ServerPart | None, command: str) -> str:
    """The command that serves with the limits that were raised when the corpus was read."""
    return with_variables(server.environment, command) if server else command
