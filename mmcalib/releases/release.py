"""Releases of vLLM, torch and Triton, for rules that differ between them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from mmcalib.releases.constants import TESTED
from mmcalib.version import installed_version, vllm_version


@dataclass(frozen=True, slots=True)
class Release:
    """One release of a package, as in `Release("vllm", 0, 11)`."""

    package: str
    major: int
    minor: int
    patch: int = 0

    @property
    def is_reached(self) -> bool:
        """True if the installed version is this one or later; False if not installed."""
        match = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?", version_of(self.package))
        if match is None:
            return False
        return tuple(int(n or 0) for n in match.groups()) >= (self.major, self.minor, self.patch)


@cache
def version_of(package: str) -> str:
    return (vllm_version() if package == "vllm" else installed_version(package)) or "unknown"


class TargetMissing(RuntimeError):  # noqa: N818 - named after the event
    """mmcalib must replace something that the installed vLLM or torch does not have there."""

    def __init__(self, target: str) -> None:
        super().__init__(f"the installed version does not have {target}, which mmcalib replaces")


# Releases that benchmarks/releases.py rehearses: all but 0.12 and 0.14. Each constant below is the
# first release with some new rule; only tests know that of 0.30.
REHEARSED_RELEASES = ("0.11", "0.13", *(f"0.{minor}" for minor in range(15, 28)), *TESTED)
VLLM_0_13 = Release("vllm", 0, 13)
VLLM_0_15 = Release("vllm", 0, 15)
VLLM_0_16 = Release("vllm", 0, 16)
VLLM_0_19 = Release("vllm", 0, 19)
VLLM_0_20 = Release("vllm", 0, 20)
VLLM_0_20_1 = Release("vllm", 0, 20, 1)
VLLM_0_23 = Release("vllm", 0, 23)
VLLM_0_24 = Release("vllm", 0, 24)
VLLM_0_28 = Release("vllm", 0, 28)
VLLM_0_29 = Release("vllm", 0, 29)
VLLM_0_30 = Release("vllm", 0, 30)
VLLM_0_31 = Release("vllm", 0, 31)
VLLM_0_32 = Release("vllm", 0, 32)
VLLM_0_33 = Release("vllm", 0, 33)
TORCH_2_11 = Release("torch", 2, 11)
TRITON_3_6 = Release("triton", 3, 6)
