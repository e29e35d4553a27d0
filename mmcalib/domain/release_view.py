"""One installed vLLM as its user meets it: what items cost there, what starts, what it is told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mmcalib.domain.cost import Cost
from mmcalib.domain.model import ModelInfo
from mmcalib.domain.rehearsed import Rehearsed
from mmcalib.domain.shapes import Shape


@dataclass(frozen=True, slots=True)
class ComparedItem:
    """A blank item of some size, and its cost; None where it is refused, in those words."""

    shape: Shape
    cost: Cost | None
    refusal: str = ""


@dataclass(frozen=True, slots=True)
class ServeArguments:
    """What `vllm serve` takes there. `arguments` maps each option, without its dashes, to what it
    sets; `defaults` are the values of all arguments, `values` those under the configuration.
    `refused` has the reason for each of its options that is not taken, and was left out.
    """

    arguments: Mapping[str, str]
    defaults: Mapping[str, Any]
    values: Mapping[str, Any]
    refused: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ReleaseView:
    """`vllm` is the version, `python` the interpreter as it was named, empty for mmcalib's own.

    `heeded`: whether each option of processor and loader that the configuration names changes what
    any of the items costs. What could not be had is None or empty, and `problems` say why.
    """

    vllm: str
    python: str
    serve: ServeArguments | None
    rehearsed: Rehearsed | None
    opened: ModelInfo | None
    items: tuple[ComparedItem, ...]
    heeded: Mapping[str, bool] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
