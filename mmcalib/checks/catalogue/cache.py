"""What the caches hold."""

from __future__ import annotations

from mmcalib.checks.check import CheckId

PROCESSOR_CACHE = CheckId("processor cache")
LARGE_ITEMS = CheckId("large-item concurrency")
