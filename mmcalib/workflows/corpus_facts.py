"""What is read and counted of a corpus, as checks look at it."""

from __future__ import annotations

from collections.abc import Mapping

from mmcalib.census.prompts import PromptCensus
from mmcalib.checks.facts import Over
from mmcalib.derive.limits import Count
from mmcalib.domain.shapes import Modality


def requests_over(prompts: PromptCensus, counts: Mapping[Modality, Count]) -> Over | None:
    """The requests with more items than the limits admit; None where there are none."""
    most = {m: count.value for m, count in counts.items()}
    over = [entry for entry in prompts.signatures() if not entry.signature.within(most)]
    if not over:
        return None
    return Over(
        requests=sum(entry.count for entry in over),
        of=prompts.prompts(),
        first=over[0].exemplar.origin,
        most={m: max(e.signature.items(m) for e in prompts.signatures()) for m in most},
    )
