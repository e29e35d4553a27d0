"""The model's processor on another device, beside the CPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mmcalib.census.shapes import Modality
from mmcalib.engine.messages.measuring import Blank, File
from mmcalib.engine.setting import Setting


@dataclass(frozen=True, slots=True)
class TryDevice:
    """Whether the model's processor heeds a device at all. Needs none, and no memory of one."""

    modalities: tuple[Modality, ...]
    kind: Literal["try_device"] = "try_device"


@dataclass(frozen=True, slots=True)
class DeviceTried:
    """`unfit` has the reason of every modality whose processor computes on the CPU only.

    `option` is vLLM's own for serving so, empty where the release has none; `threads` are torch's
    on the CPU.
    """

    unfit: dict[Modality, str]
    option: str
    threads: int
    kind: Literal["device_tried"] = "device_tried"


@dataclass(frozen=True, slots=True)
class CompareDevices:
    """Process the subject on the CPU, as served, and on `device` (torch's word).

    `warm` processes it once on each before, unmeasured: what a first run makes, later ones find.
    """

    setting: Setting
    subject: Blank | File
    device: str
    warm: bool = False
    kind: Literal["compare_devices"] = "compare_devices"


@dataclass(frozen=True, slots=True)
class Form:
    """One field of a processed item: a tensor, or a list by its length."""

    name: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Processed:
    """What a processor made of one item, without its loading. `peak_bytes` of the device are above
    what was held before; None on one that has no memory of its own.
    """

    tokens: int
    embeds: int
    forms: tuple[Form, ...]
    seconds: float
    peak_bytes: int | None


@dataclass(frozen=True, slots=True)
class DevicesCompared:
    """Both results; one that is None was refused for the reason in `refusal`.

    `largest_difference` of two values is in the tensors' own unit; None where none can be told.
    """

    cpu: Processed | None
    device: Processed | None
    refusal: str = ""
    largest_difference: float | None = None
    kind: Literal["devices_compared"] = "devices_compared"
