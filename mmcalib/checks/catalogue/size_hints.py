"""Size hints of `limit_mm_per_prompt`."""

from __future__ import annotations

from mmcalib.checks.check import CheckId

SIZE_HINT = CheckId("{} size hint")
HINT_WITHIN = CheckId("{} hint within the maximum")
