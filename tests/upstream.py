"""Where another release of vLLM does otherwise, so that a test has to fail there: `make compat`
shows the reasons.
"""

from __future__ import annotations

import pytest

from mmcalib.releases.release import Release

# The most of it, of 0.28 alone.
NESTED = "nested processor options are not read when the encoder budget is counted"


def before(release: Release, why: str) -> pytest.MarkDecorator:
    """With an older vLLM the test is expected to fail, and is an error where it passes."""
    return _expected(not release.reached, f"before {release.major}.{release.minor} {why}")


def since(release: Release, why: str) -> pytest.MarkDecorator:
    """The same with this vLLM and later ones."""
    return _expected(release.reached, f"from {release.major}.{release.minor} on {why}")


def _expected(here: bool, reason: str) -> pytest.MarkDecorator:
    return pytest.mark.xfail(here, reason=reason, strict=True)
