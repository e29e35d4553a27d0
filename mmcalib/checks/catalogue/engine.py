"""What vLLM says of a configuration, and its engine does with it."""

from __future__ import annotations

from mmcalib.checks.check import CheckId

CONFIGURATION_ACCEPTED = CheckId("configuration accepted")
BATCH_HOLDS_ITEM = CheckId("batch holds an item")
DEFAULT_CONFIGURATION = CheckId("default configuration")
ENGINE_START = CheckId("engine start")
MEMORY_PROFILE = CheckId("memory profile")
REPLAY = CheckId("replay")
SWEEP = CheckId("encoder sweep")
PROCESSOR_ON_GPU = CheckId("processor on the GPU")
DEFAULT_COMPARED = CheckId("default for comparison")
RUN_FINISHED = CheckId("run finished")
