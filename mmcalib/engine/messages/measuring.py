"""Opening a model, and what its processor makes of items."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from mmcalib.domain.cost import Cost, RefusedBy
from mmcalib.domain.model import ModelInfo
from mmcalib.domain.setting import Setting
from mmcalib.domain.shapes import Modality, Shape
from mmcalib.engine.messages.closing import Done
from mmcalib.engine.messages.message import Interim, Repeatable, Reply, Request


@dataclass(frozen=True, slots=True)
class ModelOpened(Reply):
    """What vLLM says of the model."""

    model: ModelInfo


@dataclass(frozen=True, slots=True)
class OpenModel(Request[ModelOpened]):
    """Load config, tokenizer and processor of the checkpoint folder or cached hub model.

    `engine_args` are further ones that the server has. Without `tries` nothing is tried out: no
    knobs are looked for, and nothing is said of tiles.
    """

    sets_state: ClassVar[bool] = True

    path: str
    max_model_len: int | None = None
    tries: bool = True
    engine_args: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Blank:
    """A blank stand-in of this shape, sampled as the server would sample a real one."""

    shape: Shape

    @property
    def modality(self) -> Modality:
        return self.shape.modality


@dataclass(frozen=True, slots=True)
class File:
    """A real file, loaded by vLLM's own media loader."""

    modality: Modality
    path: str


@dataclass(frozen=True, slots=True)
class Measure(Repeatable, Request[Done]):
    """Cost every subject under the setting; answered by one `Measured` each, in order."""

    setting: Setting
    subjects: tuple[Blank | File, ...]

    @property
    def of_files(self) -> bool:
        """Whether any is real."""
        return any(isinstance(subject, File) for subject in self.subjects)


@dataclass(frozen=True, slots=True)
class Measured(Interim):
    """The answer for subject `index`: a cost, or the reason why it is refused, by vLLM or because
    the host has no memory for it. `resampled` is how many samples a file of sound has at the
    model's rate, by vLLM's loader and by librosa; empty where they were not compared.
    """

    index: int
    cost: Cost | None
    refusal: str = ""
    refused_by: RefusedBy = "vllm"
    resampled: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Counted(Reply):
    """Embeds per stand-in, None where vLLM's code for the model has no count of it; `sampled` as
    in `Cost`. `parts` as in `VllmCount`.
    """

    embeds: tuple[int | None, ...]
    sampled: tuple[tuple[int, ...], ...]
    parts: tuple[int | None, ...] = ()


@dataclass(frozen=True, slots=True)
class CountEmbeds(Repeatable, Request[Counted]):
    """Ask vLLM's own count of each stand-in's embeds, by its size."""

    setting: Setting
    subjects: tuple[Blank, ...]
