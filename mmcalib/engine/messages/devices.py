"""The model's processor on another device, beside the CPU."""

from __future__ import annotations

from dataclasses import dataclass

from mmcalib.domain.processed import Processed
from mmcalib.domain.setting import Setting
from mmcalib.domain.shapes import Modality
from mmcalib.engine.messages.measuring import Blank, File
from mmcalib.engine.messages.message import Reply, Request


@dataclass(frozen=True, slots=True)
class DeviceTried(Reply):
    """`unfit` has the reason of every modality whose processor computes on the CPU only.

    `option` is vLLM's own for serving so, empty where the release has none; `threads` are torch's
    on the CPU.
    """

    unfit: dict[Modality, str]
    option: str
    threads: int


@dataclass(frozen=True, slots=True)
class TryDevice(Request[DeviceTried]):
    """Whether the model's processor heeds a device at all. Needs none, and no memory of one."""

    modalities: tuple[Modality, ...]


@dataclass(frozen=True, slots=True)
class DevicesCompared(Reply):
    """Both results; one that is None was refused for the reason in `refusal`.

    `largest_difference` of two values is in the tensors' own unit; None where none can be told.
    """

    cpu: Processed | None
    device: Processed | None
    refusal: str = ""
    largest_difference: float | None = None


@dataclass(frozen=True, slots=True)
class CompareDevices(Request[DevicesCompared]):
    """Process the subject on the CPU, as served, and on `device` (torch's word).

    `warm` processes it once on each before, unmeasured: what a first run makes, later ones find.
    """

    setting: Setting
    subject: Blank | File
    device: str
    warm: bool = False
