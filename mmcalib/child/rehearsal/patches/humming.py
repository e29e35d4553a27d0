"""Humming, whose kernels vLLM 0.33 chooses for 4-bit floats on Hopper: what they make of weights is
not described here, and so they are refused by name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mmcalib.child.rehearsal.device.errors import NoFakeImplementation
from mmcalib.child.rehearsal.patches.flashinfer import WAY_OUT
from mmcalib.child.rehearsal.patches.patching import replace
from mmcalib.releases import targets


def install(module: Callable[[], str]) -> None:
    """`module` says which part of the model is at work."""

    def refuse() -> Any:
        raise NoFakeImplementation("humming", module(), WAY_OUT)

    replace(targets.HUMMING_DEVICE, refuse)
