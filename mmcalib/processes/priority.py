"""The priority of the thread that calls libraries which raise it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def own_priority() -> Iterator[None]:
    """While open the scheduler's policy of this thread may change; then it is as it was.

    SVT-AV1 gives root's thread a real-time priority for good: it, and whatever it starts later,
    would let nothing else run.
    """
    if not hasattr(os, "sched_getscheduler"):
        yield
        return
    policy, parameters = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        yield
    finally:
        os.sched_setscheduler(0, policy, parameters)
