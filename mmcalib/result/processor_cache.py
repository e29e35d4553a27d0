"""What a processor cache is worth to the requests, as `calibration.json` keeps it."""

from __future__ import annotations

from typing import Literal

from mmcalib.result.part import DocumentPart


class CachePoint(DocumentPart):
    """One point of the hit curve."""

    capacity_bytes: int
    hit_rate: float


class ProcessorCache(DocumentPart):
    """The size for `mm_processor_cache_gb` and the hit curve that it was read from.

    An access is one request's use of one item. The curve begins at the least capacity that hits
    at all; below `largest_request_bytes` it is no promise. `admissible_request_bytes` is what one
    request within the limits may bring, and the least size; `wanted_gb` has nearly all of the hits
    that there are, whether it is allowed or not. Both are null in files of earlier versions.
    """

    requests: int
    accesses: int
    distinct: int
    distinct_bytes: int
    largest_request_bytes: int
    admissible_request_bytes: int | None = None
    complete: bool
    mm_processor_cache_gb: float
    total_bytes: int
    wanted_gb: float | None = None
    wanted_hit_rate: float | None = None
    hit_rate: float
    most_hit_rate: float
    default_hit_rate: float
    curve: list[CachePoint]
    label: Literal["computed"] = "computed"
