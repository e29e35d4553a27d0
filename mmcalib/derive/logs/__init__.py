"""What a vLLM server log says: versions 0.8 to 0.33, startup and out-of-memory messages.

`read_log` reads lines and never fails on them; what a log does not state stays None.
"""

from mmcalib.derive.logs.causes import (
    AllocationFailed,
    Cause,
    ExternalWeights,
    FrontendDecoding,
    GpuOccupied,
    ItemAboveBatch,
    ItemRefused,
    KvCacheTooSmall,
    NoKvCache,
    OutOfMemory,
    ProcessKilled,
    SamplerOutOfMemory,
)
from mmcalib.derive.logs.phases import Phase
from mmcalib.derive.logs.read import read_log
from mmcalib.derive.logs.retired import RETIRED, RetiredKnob
from mmcalib.derive.logs.startup_log import LoggedBudget, Reading, StartupLog, Trouble

__all__ = [
    "RETIRED",
    "AllocationFailed",
    "Cause",
    "ExternalWeights",
    "FrontendDecoding",
    "GpuOccupied",
    "ItemAboveBatch",
    "ItemRefused",
    "KvCacheTooSmall",
    "LoggedBudget",
    "NoKvCache",
    "OutOfMemory",
    "Phase",
    "ProcessKilled",
    "Reading",
    "RetiredKnob",
    "SamplerOutOfMemory",
    "StartupLog",
    "Trouble",
    "read_log",
]
