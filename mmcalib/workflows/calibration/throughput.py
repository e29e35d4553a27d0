"""From the seconds of measured files and of the sweep to the rates that the reports show."""

from __future__ import annotations

from collections.abc import Mapping

from mmcalib.derive.costs import CostTable
from mmcalib.derive.throughput import Batch, CpuCost, EncoderCost, cpu_cost, encoder_cost
from mmcalib.domain.shapes import Modality
from mmcalib.result import throughput as c
from mmcalib.workflows.proof.startup import Started
from mmcalib.workflows.proof.sweep import Sweep

_DIGITS = 6


def throughput(
    table: CostTable, swept: Sweep | None, started: Started | None
) -> c.Throughput | None:
    """None where no real file was measured.

    Items per second are said of a whole encoder on a GPU only: seconds are not scaled by depth.
    """
    every = {m: cpu_cost(table.of(m)) for m in table.modalities()}
    cpu = {m: cost for m, cost in every.items() if cost}
    if not cpu:
        return None
    encoder = _encoder(table, swept) if swept and started else {}
    depth, true_depth = (d[1] for d in (started.depths, started.true_depths)) if started else (0, 0)
    device = started.figures.device if started else ""
    whole = device != "cpu" and depth == true_depth
    modalities = {}
    for modality, one in cpu.items():
        most = one.costliest
        modalities[str(modality)] = c.ModalityRates(
            **_rates({modality: one}, encoder, whole=whole).model_dump(),
            costliest=c.CostliestFile(
                exemplar=most.exemplar, shape=str(most.shape), cpu_s=round(most.cpu_s, _DIGITS)
            ),
        )
    several = len(cpu) > 1
    return c.Throughput(
        modalities=modalities,
        mix=_rates(cpu, encoder, whole=whole) if several else None,
        device=device if encoder else None,
        depth=depth if encoder else None,
        true_depth=true_depth if encoder else None,
    )


def _encoder(table: CostTable, swept: Sweep) -> dict[Modality, EncoderCost]:
    found = {
        m: encoder_cost(
            table.of(m), [Batch(s.batch.items, s.batch.tokens, s.run.seconds) for s in several]
        )
        for m, several in swept.swept.items()
    }
    return {modality: cost for modality, cost in found.items() if cost}


def _rates(
    cpu: Mapping[Modality, CpuCost], encoder: Mapping[Modality, EncoderCost], *, whole: bool
) -> c.Rates:
    """The rates over all of these modalities, each by its items."""
    items = sum(one.items for one in cpu.values())
    cpu_s = sum(one.items * one.mean_s for one in cpu.values()) / items
    known = {m: encoder[m] for m in cpu if m in encoder}
    alone = least = None
    if len(known) == len(cpu):
        alone = sum(cpu[m].items * one.mean_s for m, one in known.items()) / items
        least = sum(cpu[m].items * one.least_s for m, one in known.items()) / items
    promised = least if whole and least else None
    return c.Rates(
        items=items,
        measured=sum(one.measured for one in cpu.values()),
        cpu_s=round(cpu_s, _DIGITS),
        cores_per_100_items_s=round(100 * cpu_s, _DIGITS),
        encoder_s=None if alone is None else round(alone, _DIGITS),
        encoder_least_s=None if least is None else round(least, _DIGITS),
        items_per_s=round(1 / promised, _DIGITS) if promised else None,
        cores=round(cpu_s / promised, _DIGITS) if promised else None,
    )
