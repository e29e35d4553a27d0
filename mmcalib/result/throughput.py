"""How fast items can be encoded, and what feeding them takes, as `calibration.json` keeps it."""

from __future__ import annotations

from typing import Literal

from mmcalib.result.part import DocumentPart


class CostliestFile(DocumentPart):
    """Of the measured files the one that took most processor seconds to load and process."""

    exemplar: str
    shape: str
    cpu_s: float
    label: Literal["measured"] = "measured"


class Rates(DocumentPart):
    """Means over `items`; `measured` files are what the processor seconds come from.

    `encoder_s` is for one item by itself, `encoder_least_s` in batches as good as the best swept.
    `items_per_s` is the most that the encoder alone of one GPU does, and `cores` what keeps it
    fed: None where it was not swept whole on a GPU.
    """

    items: int
    measured: int
    cpu_s: float
    cores_per_100_items_s: float
    encoder_s: float | None = None
    encoder_least_s: float | None = None
    items_per_s: float | None = None
    cores: float | None = None


class ModalityRates(Rates):
    """Those of one modality."""

    costliest: CostliestFile


class Throughput(DocumentPart):
    """`mix` is an item of all these modalities, as the corpus mixes them; None where it is of one.
    Encoder seconds are of `depth` of its `true_depth` layers on `device`; None without a sweep.
    """

    modalities: dict[str, ModalityRates]
    mix: Rates | None = None
    device: str | None = None
    depth: int | None = None
    true_depth: int | None = None
    label: Literal["computed"] = "computed"
