"""What rehearsed memory says of a configuration."""

from __future__ import annotations

from mmcalib.checks.check import KEEP, CheckId

MEMORY_ON = CheckId("memory on {}")
TRAFFIC_ON = CheckId("traffic on {}")
CONCURRENCY = CheckId("concurrency")
BETTER = CheckId("better than the defaults")
KEEP_DEFAULTS = CheckId(KEEP)
PEAK_BY_FORMULA = CheckId("encoder peak by formula")
KV_PINNED = CheckId("KV cache pinned")
PREDICTED = CheckId("predicted against measured")
CACHED_KEEP = CheckId("what cached items keep")
