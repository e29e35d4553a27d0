"""A setting: one point of processor and loader options, as vLLM spells them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from mmcalib.domain import nested

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


def merged(settings: Iterable[Setting]) -> Setting:
    """All their kwargs together; settings of different knobs do not overlap."""
    kwargs: dict[str, Json] = {}
    media: dict[str, Json] = {}
    for setting in settings:
        kwargs = nested.merged(kwargs, setting.mm_processor_kwargs)
        media = nested.merged(media, setting.media_io_kwargs)
    return Setting(kwargs, media)
