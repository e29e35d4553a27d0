"""First step, where the corpus was scanned before: its census, and what of its media is here."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mmcalib.errors import CorpusError, UsageError
from mmcalib.locations.domains import is_allowed
from mmcalib.locations.location import is_here
from mmcalib.result.survey import missing
from mmcalib.wording import few
from mmcalib.workflows.read import ReadCorpus
from mmcalib.workflows.scan import merge


def counted_before(paths: Sequence[Path]) -> ReadCorpus:
    """The census files at `paths`, or in these folders, as one corpus. Its media are read where
    they lie, remote ones only from hosts that are allowed: whoever wrote the file chose them.

    A census keeps neither the order of requests nor the texts of all, so that nothing is known of
    what repeats, and many texts are bounded rather than counted. Raises UsageError where shards
    are missing, or a file is no census, and CorpusError where it is one of nothing.
    """
    found = merge(paths)
    survey = found.survey
    if absent := missing(survey.shards):
        raise UsageError(
            f"not all of the corpus: without shard {few(absent)}",
            hint="--census OUT of each scan that is missing",
        )
    if not survey.census.items():
        raise CorpusError(
            "nothing to calibrate for: the census holds no media", hint="mmcalib scan --data DIR"
        )
    return ReadCorpus(
        survey.census,
        survey.requests,
        found.skipped,
        survey.corpus.files,
        reach=lambda path: is_here(path) or is_allowed(path),
    )
