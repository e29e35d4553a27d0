"""Whether today's traffic is still what a configuration was calibrated for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mmcalib.derive.drift.metrics import metrics_drift
from mmcalib.derive.drift.requests import TrafficSeen, requests_drift
from mmcalib.domain.items import Skipped
from mmcalib.errors import CorpusError
from mmcalib.progress import Progress, Silent
from mmcalib.result.drift import Drift
from mmcalib.workflows.drift.calibrated import calibrated_traffic
from mmcalib.workflows.drift.metrics import server_counts
from mmcalib.workflows.gate.calibration import Calibration
from mmcalib.workflows.gate.check import check


def drift_of_requests(
    calibration: Calibration,
    requests: Sequence[Path],
    *,
    tolerated: float,
    allowed_root: Path | None = None,
    progress: Progress | None = None,
) -> Drift:
    """By the requests themselves, which are read once, by headers. Raises as `check`."""
    seen, gate = TrafficSeen(), calibration.gate
    answers = check(calibration, (), requests, allowed_root=allowed_root)
    with (progress or Silent()).step("reading requests") as task:
        for checked in answers:
            task.advance()
            if not isinstance(checked, Skipped):
                read = bool(checked.shapes) or checked.admission.tokens is not None
                seen.add(gate, checked.shapes, checked.admission, read=read)
    if not seen.requests:
        raise CorpusError("no request was read", hint="--requests FILE names a JSONL file of them")
    figures = requests_drift(seen, calibrated_traffic(calibration), tolerated)
    return Drift.of("requests", seen.requests, figures)


def drift_of_metrics(
    calibration: Calibration, source: str, since: str | None = None, *, tolerated: float
) -> Drift:
    """By what a server counted, since it started or since an earlier scrape. Raises CorpusError
    where there was no request, and as `server_counts`.
    """
    counts = server_counts(source)
    if since is not None:
        added = counts.since(server_counts(since))
        if added is None:
            raise CorpusError(
                "the server has counted less since --since: it was started anew",
                hint="leave --since out",
            )
        counts = added
    if not counts.prompts.count:
        raise CorpusError("no request has ended in that time", hint="scrape again, later")
    figures = metrics_drift(counts, calibrated_traffic(calibration), tolerated)
    return Drift.of("metrics", counts.prompts.count, figures)
