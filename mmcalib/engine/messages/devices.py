"""The model's processor on another device, beside the CPU."""

from __future__ import annotations

from dataclasses import dataclass

from mmcalib.domain.processed import Processed
from mmcalib.domain.setting import Setting
from mmcalib.engine.messages.measuring import Blank, File
from mmcalib.engine.messages.message import Reply, Request


@dataclass(frozen=True, slots=True)
class DevicesCompared(Reply):
    """Both results; one that is None was refused for the reason in `refusal`."""

    cpu: Processed | None
    device: Processed | None
    refusal: str = ""


@dataclass(frozen=True, slots=True)
class CompareDevices(Request[DevicesCompared]):
    """Process the subject on the CPU, as served, and on `device` (torch's word).

    `warm` processes it once on each before, unmeasured: what a first run makes, later ones find.
    """

    setting: Setting
    subject: Blank | File
    device: str
    warm: bool = False
