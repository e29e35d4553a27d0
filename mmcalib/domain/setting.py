"""A setting: one point of processor and loader options, as vLLM spells them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Json = Any


@dataclass(frozen=True, slots=True)
class Setting:
    """`mm_processor_kwargs` and `media_io_kwargs` of one measurement; empty means the defaults."""

    mm_processor_kwargs: Mapping[str, Json] = field(default_factory=dict)
    media_io_kwargs: Mapping[str, Json] = field(default_factory=dict)

    @property
    def engine_args(self) -> dict[str, Json]:
        """As vLLM's engine takes it: what is empty is left out."""
        both = {
            "mm_processor_kwargs": self.mm_processor_kwargs,
            "media_io_kwargs": self.media_io_kwargs,
        }
        return {name: dict(given) for name, given in both.items() if given}

    @property
    def key(self) -> str:
        """Canonical JSON: equal for equal settings, whatever the order of their keys."""
        both = [dict(self.mm_processor_kwargs), dict(self.media_io_kwargs)]
        return json.dumps(both, sort_keys=True, separators=(",", ":"))


DEFAULT = Setting()
