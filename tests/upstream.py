"""What an older release of vLLM does otherwise, so that a test has to fail there; `make compat`
shows the reasons.
"""

from __future__ import annotations

import pytest

from mmcalib.releases.release import Release


def before(release: Release, why: str) -> pytest.MarkDecorator:
    """With an older vLLM the test is expected to fail, and is an error where it passes."""
    reason = f"before {release.major}.{release.minor} {why}"
    return pytest.mark.xfail(not release.reached, reason=reason, strict=True)
