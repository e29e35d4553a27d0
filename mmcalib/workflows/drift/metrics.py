"""What a vLLM server counts, read from its `/metrics` or from a scrape that was kept."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections import defaultdict
from typing import Final

from mmcalib.derive.drift.metrics import Histogram, ServerCounts
from mmcalib.documents import read_document
from mmcalib.errors import CorpusError, UsageError
from mmcalib.releases.constants import (
    METRIC_FINISHED,
    METRIC_FINISHED_REASON,
    METRIC_GENERATION_TOKENS,
    METRIC_HTTP,
    METRIC_KV_USAGE,
    METRIC_MM_HITS,
    METRIC_MM_QUERIES,
    METRIC_PREEMPTIONS,
    METRIC_PROMPT_TOKENS,
)
from mmcalib.wording import one_line

# A server of many replicas and models has a few hundred thousand.
_MOST_BYTES: Final = 1 << 24
_TIMEOUT_S: Final = 10.0
_WEB: Final = ("http://", "https://")
_CHAT: Final = "/v1/chat/completions"
_HINT: Final = "http://HOST:8000/metrics of a vLLM server, or a file with what that gave"

Samples = dict[str, list[tuple[dict[str, str], float]]]


def server_counts(source: str) -> ServerCounts:
    """Of a URL or a file, all engines and models of it added up. Raises CorpusError where it cannot
    be read or is none of vLLM's, UsageError without the package that reads it.
    """
    return counts_of(_text(source), source)


def counts_of(text: str, source: str) -> ServerCounts:
    """Of the text of a scrape. Raises as `server_counts`."""
    samples = _samples(text, source)
    if f"{METRIC_PROMPT_TOKENS}_bucket" not in samples:
        raise CorpusError(
            f"no metrics of vLLM in {one_line(source)}: {METRIC_PROMPT_TOKENS} is not there",
            hint=_HINT,
        )
    usages = [value for _, value in samples.get(METRIC_KV_USAGE, ())]
    chats = [(tags, n) for tags, n in samples.get(METRIC_HTTP, ()) if tags.get("handler") == _CHAT]
    return ServerCounts(
        prompts=_histogram(samples, METRIC_PROMPT_TOKENS),
        answers=_histogram(samples, METRIC_GENERATION_TOKENS),
        queries=_total(samples, METRIC_MM_QUERIES),
        hits=_total(samples, METRIC_MM_HITS),
        preemptions=_total(samples, METRIC_PREEMPTIONS),
        finished=_by(samples.get(METRIC_FINISHED, []), METRIC_FINISHED_REASON),
        http=_by(chats, "status"),
        kv_usage=max(usages, default=None),
    )


def _text(source: str) -> str:
    try:
        if source.lower().startswith(_WEB):
            with urllib.request.urlopen(source, timeout=_TIMEOUT_S) as answer:  # noqa: S310 - http(s)
                data = answer.read(_MOST_BYTES + 1)
            if len(data) > _MOST_BYTES:
                raise CorpusError(f"{one_line(source)}: too large for metrics", hint=_HINT)
            return bytes(data).decode(errors="replace")
        return read_document(source, _MOST_BYTES).decode(errors="replace")
    except (OSError, urllib.error.URLError, ValueError) as error:
        why = getattr(error, "strerror", None) or getattr(error, "reason", None) or error
        raise CorpusError(f"cannot read {one_line(source)}: {why}", hint=_HINT) from error


def _samples(text: str, source: str) -> Samples:
    try:
        from prometheus_client.parser import text_string_to_metric_families
    except ImportError as error:
        raise UsageError(
            "prometheus_client is not installed, which reads metrics",
            hint="pip install 'mmcalib[metrics]'; vLLM brings it, too",
        ) from error
    found: Samples = defaultdict(list)
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                found[sample.name].append((dict(sample.labels), float(sample.value)))
    except (ValueError, KeyError, IndexError) as error:
        raise CorpusError(f"no metrics: {one_line(source)}", hint=_HINT) from error
    return found


def _total(samples: Samples, name: str) -> float | None:
    values = [value for _, value in samples.get(name, ())]
    return sum(values) if values else None


def _by(found: list[tuple[dict[str, str], float]], label: str) -> dict[str, float]:
    sums: dict[str, float] = defaultdict(float)
    for tags, value in found:
        sums[tags.get(label, "")] += value
    return dict(sums)


def _histogram(samples: Samples, name: str) -> Histogram:
    at_most = _by(samples.get(f"{name}_bucket", []), "le")
    ends = {float(end): count for end, count in at_most.items() if end}
    return Histogram(dict(sorted(ends.items())), _total(samples, f"{name}_sum") or 0.0)
