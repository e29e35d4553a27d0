"""What else could be set, as `calibration.json` keeps it for the report's reader to try."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from mmcalib.result.part import DocumentPart


class WhatIfState(DocumentPart):
    """One option of the group at another value, or none: all as they were chosen. `setting` gives
    the group's options their values. `items_downscaled` of the group's items have fewer tokens than
    by default. vLLM reserves as for the state at the place `budget_of`.
    """

    knob: str | None
    value: int | float | None
    setting: dict[str, Any]
    items_downscaled: int
    budget_of: int


class WhatIfGroup(DocumentPart):
    """Options that change the same items: one is turned at a time, because two were not measured
    together. The first of its `states` is what was chosen; `chosen` has each option's value there.
    """

    modalities: list[str]
    items: int
    chosen: dict[str, int | float]
    states: list[WhatIfState]


class WhatIfPool(DocumentPart):
    """The KV cache with the states at `places`, one of each group, and this context. `rehearsed`:
    this very setting was; `computed`: it follows from settings that were, and `off_bytes` is
    twice the most by which one of those differs from what its neighbours say of it. Without tokens
    vLLM would not start.
    """

    places: list[int]
    max_model_len: int
    max_num_batched_tokens: int
    kv_cache_bytes: int
    off_bytes: int
    kv_cache_tokens: int | None
    max_concurrency: float | None
    label: Literal["rehearsed", "computed"]


class WhatIfRejected(DocumentPart):
    """So many of the corpus' requests vLLM would refuse there; where it has none, of its items."""

    places: list[int]
    max_model_len: int
    requests: int


class WhatIf(DocumentPart):
    """`pools` lacks what vLLM refuses and what no rehearsal says anything of. `rejected` has the
    settings under which any of `requests` are, None where those are too many to be looked at.
    `limit_mm_per_prompt` is without size hints, `setting` what every setting has besides.
    """

    groups: list[WhatIfGroup]
    contexts: list[int]
    requests: int
    limit_mm_per_prompt: dict[str, int]
    setting: dict[str, Any]
    pools: list[WhatIfPool]
    rejected: list[WhatIfRejected] | None = Field(default=None)
