"""What serving the corpus' requests takes."""

from __future__ import annotations

from mmcalib.checks.check import CheckId

TRAFFIC_ON = CheckId("traffic on {}")
