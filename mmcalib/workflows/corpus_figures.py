"""What a corpus' items cost under one setting, as the documents say it."""

from __future__ import annotations

from mmcalib.derive.costs import CostTable
from mmcalib.derive.frontier import retention
from mmcalib.derive.percentiles import spread
from mmcalib.results.calibration import Corpus, ModalityItems, Tokens


def corpus_figures(
    table: CostTable, prompts: int, skipped: int, calibrated: CostTable | None = None
) -> Corpus:
    """The spread of each modality in `table`; `prompts` requests, `skipped` files and requests;
    what items keep under another setting is in the `calibrated` table.
    """
    modalities = {}
    for modality in table.modalities():
        found, heaviest = spread(table.of(modality)), table.heaviest(modality)
        modalities[str(modality)] = ModalityItems(
            items=found.items,
            unique_shapes=found.unique_shapes,
            tokens=Tokens(
                min=found.min,
                p50=found.p50,
                p90=found.p90,
                p99=found.p99,
                max=found.max,
                exemplar=found.exemplar,
                label="computed" if modality in table.witnesses else "measured",
            ),
            heaviest=str(heaviest.shape) if heaviest else "",
            witnesses=table.witnesses.get(modality),
            kept=retention(calibrated.of(modality), table.of(modality)) if calibrated else None,
        )
    return Corpus(
        items=table.items(),
        prompts=prompts,
        skipped=skipped,
        modalities=modalities,
    )
