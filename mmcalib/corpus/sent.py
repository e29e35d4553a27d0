"""When a request was sent, where its line says so."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Final

# As the traces that vLLM's benchmarks replay name it, by default (`TimedTrace` in
# vllm/benchmarks/datasets/datasets.py, 0.32), and as LiteLLM does.
TIME_FIELDS: Final = ("timestamp", "startTime")


def seconds_of(given: object) -> float | None:
    """A number of seconds, or a time of ISO 8601, of UTC without a zone. None for others."""
    if isinstance(given, bool) or not isinstance(given, int | float | str):
        return None
    try:
        seconds = float(given)
    except OverflowError:
        return None
    except ValueError:
        return _of_iso(str(given))
    return seconds if math.isfinite(seconds) else None


def _of_iso(written: str) -> float | None:
    try:
        moment = datetime.fromisoformat(written)
    except ValueError:
        return None
    zoned = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return zoned.timestamp()
