"""The order in which a corpus' items take most, looked for and written down."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mmcalib.domain.rehearsed import Rehearsed
from mmcalib.domain.traffic import Trace
from mmcalib.files import write_text
from mmcalib.result.traffic import WorstOrderFigures
from mmcalib.workflows.memory.rehearse import Rehearsals
from mmcalib.workflows.traffic.figures import worst_figures
from mmcalib.workflows.traffic.fired import fired
from mmcalib.workflows.traffic.search import WorstOrderSearch
from mmcalib.workflows.traffic.serving import served_args


def worst_of(
    rehearsals: Rehearsals,
    cut: Path,
    engine_args: Mapping[str, Any],
    started: Rehearsed,
    asked: Trace,
    search: WorstOrderSearch,
) -> WorstOrderFigures:
    """Of the items of these requests, as many in one as they have; also writes the file. Raises
    OutputError where that cannot be, EngineError where the search ends early.
    """
    items = list(dict.fromkeys(item for request in asked.requests for item in request.items))
    counts: Counter[str] = Counter()
    for request in asked.requests:
        counts |= Counter(item.shape.modality for item in request.items)
    args = served_args(engine_args, cut, started)
    found = rehearsals.find_worst(args, items, counts, trials=search.trials, seed=search.seed)
    write_text(search.file, "".join(f"{line}\n" for line in fired(found.requests)))
    return worst_figures(found, started, search.file)
