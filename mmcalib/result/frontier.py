"""The frontier, as `calibration.json` keeps it."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from mmcalib.result.part import DocumentPart


class FrontierPoint(DocumentPart):
    """One value of one knob: what it does to the items of its modality, and to the budget.

    Retention is the share of its tokens that an item keeps, p99 and p50 count every item.
    `process_s` is the mean to load and process one; `resident_items` of the largest fit into the
    encoder cache. `adequacy` is that of the configuration without size hints. `dominated`: another
    point of the modality is nowhere worse. `bleeds`: other modalities whose items it changes too.
    """

    knob: str
    modality: str
    value: int | float
    max_tokens: int
    p50_tokens: int
    share_downscaled: float
    worst_retention: float
    encoder_budget_tokens: int
    profiled_items: int
    chosen: bool
    mean_retention: float | None = None
    p99_tokens: int | None = None
    process_s: float | None = None
    adequacy: float | None = None
    resident_items: int | None = None
    dominated: bool = False
    bleeds: list[str] = Field(default_factory=list)
    activation_peak_bytes: int | None = None
    kv_cache_bytes: int | None = None
    kv_cache_tokens: int | None = None
    max_concurrency: float | None = None
    label: Literal["measured", "computed"] = "measured"
