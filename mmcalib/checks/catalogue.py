"""The code, name and explanation of every check, from `checks.txt`."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Final

from mmcalib.errors import UsageError


@dataclass(frozen=True, slots=True)
class CheckId:
    """A check. `about` replaces the `…` in its name."""

    code: str
    pattern: str
    explanation: str
    about: str = ""

    @property
    def name(self) -> str:
        return self.pattern.replace("…", self.about or "…")

    def of(self, about: str) -> CheckId:
        return replace(self, about=about)


def _read_table() -> dict[str, dict[str, CheckId]]:
    """The checks by heading and code. A code never moves to another check."""
    groups: dict[str, dict[str, CheckId]] = {}
    group: dict[str, CheckId] = {}
    for line in files("mmcalib.checks").joinpath("checks.txt").read_text("utf-8").splitlines():
        code, *texts = line.split(" | ")
        if texts:
            group[code] = CheckId(code, *texts)
        else:
            group = groups[line] = {}
    return groups


GROUPS: Final = _read_table()
CHECKS: Final = {code: check for group in GROUPS.values() for code, check in group.items()}


def check_of_code(code: str) -> CheckId:
    """The check of a code. Raises UsageError for an unknown one."""
    found = CHECKS.get(code.upper())
    if found is None:
        near = difflib.get_close_matches(code.upper(), CHECKS, n=1)
        hint = " ".join(["mmcalib list checks", *near])
        raise UsageError(f"no check has the code {code}", hint=hint)
    return found


READABLE_FILES: Final = CHECKS["MM001"]
MEDIA_LOADING: Final = CHECKS["MM002"]
MODALITY_LOADING: Final = CHECKS["MM003"]
PROCESSING: Final = CHECKS["MM004"]
MODALITIES_SERVED: Final = CHECKS["MM005"]
SAMPLES: Final = CHECKS["MM006"]
BLANK_ITEMS: Final = CHECKS["MM007"]
REAL_ITEMS: Final = CHECKS["MM008"]
AUDIO_LENGTH: Final = CHECKS["MM009"]
SERVER_LIMITS: Final = CHECKS["MM010"]
MEDIA_INPUT: Final = CHECKS["MM011"]
TOOL_CALLS: Final = CHECKS["MM012"]
ADMITTED: Final = CHECKS["MM021"]
NEWLY_REJECTED: Final = CHECKS["MM022"]
DETAIL_KEPT: Final = CHECKS["MM023"]
SMALLEST_CAP: Final = CHECKS["MM024"]
MODEL_SIZE_LIMIT: Final = CHECKS["MM025"]
REQUESTS_ADMITTED: Final = CHECKS["MM026"]
PROMPT_LENGTH: Final = CHECKS["MM027"]
SIZE_HINT: Final = CHECKS["MM031"]
HINT_MAXIMUM: Final = CHECKS["MM032"]
SETTINGS_EFFECT: Final = CHECKS["MM033"]
EFFECT_OF: Final = CHECKS["MM034"]
TOKEN_CAP: Final = CHECKS["MM035"]
CONFIG_PARSING: Final = CHECKS["MM036"]
PROCESSOR_CACHE: Final = CHECKS["MM037"]
CONFIGURATION_ACCEPTED: Final = CHECKS["MM038"]
DEFAULT_CONFIGURATION: Final = CHECKS["MM039"]
MEMORY_RESERVE: Final = CHECKS["MM041"]
ENCODER_RESERVE: Final = CHECKS["MM042"]
INPUT_MEMORY: Final = CHECKS["MM043"]
LARGE_ITEMS: Final = CHECKS["MM044"]
MEMORY_ON: Final = CHECKS["MM045"]
CONCURRENCY: Final = CHECKS["MM046"]
LOAD_ON: Final = CHECKS["MM047"]
PREDICTION: Final = CHECKS["MM049"]
CACHE_RETENTION: Final = CHECKS["MM050"]
FIXED_KV_CACHE: Final = CHECKS["MM051"]
OUTSIDE: Final = CHECKS["MM052"]
ENGINE_START: Final = CHECKS["MM061"]
MEMORY_PROFILE: Final = CHECKS["MM062"]
REPLAY: Final = CHECKS["MM063"]
PROCESSOR_ON_GPU: Final = CHECKS["MM064"]
NOT_STARTED_WITH: Final = CHECKS["MM065"]
RUN_COMPLETION: Final = CHECKS["MM066"]
VLLM_RELEASE: Final = CHECKS["MM067"]
BETTER: Final = CHECKS["MM071"]
KEEP_DEFAULTS: Final = CHECKS["MM072"]
UNKNOWN_KEY: Final = CHECKS["MM080"]
EMPTY_KEY: Final = CHECKS["MM081"]
VALUE_OF: Final = CHECKS["MM082"]
FALSE_KEY: Final = CHECKS["MM083"]
REPEATED_KEY: Final = CHECKS["MM084"]
FLAG_OVER: Final = CHECKS["MM085"]
LIMIT_OF: Final = CHECKS["MM086"]
UNLIMITED: Final = CHECKS["MM087"]
SCOPE: Final = CHECKS["MM088"]
REQUEST_CACHE: Final = CHECKS["MM089"]
ITEM_BATCH: Final = CHECKS["MM090"]
REQUEST_OPTIONS: Final = CHECKS["MM091"]
PRUNING_MEMORY: Final = CHECKS["MM092"]
RANK_ITEM: Final = CHECKS["MM093"]
LOGPROBS_MEMORY: Final = CHECKS["MM094"]
GRAPHS_MEMORY: Final = CHECKS["MM095"]
EMBEDDINGS: Final = CHECKS["MM096"]
API_SERVER_MEMORY: Final = CHECKS["MM097"]
SHARED_CACHE: Final = CHECKS["MM098"]
ASSUMED_COUNT: Final = CHECKS["MM101"]
ASSUMED_ANSWER: Final = CHECKS["MM102"]
ASSUMED_LOAD: Final = CHECKS["MM103"]
ASSUMED_BATCH: Final = CHECKS["MM104"]
VLLM: Final = CHECKS["MM111"]
ENGINE: Final = CHECKS["MM112"]
SERVING: Final = CHECKS["MM113"]
TORCH: Final = CHECKS["MM114"]
MEDIA_LIBRARIES: Final = CHECKS["MM115"]
GPU: Final = CHECKS["MM116"]
MODEL_HUB: Final = CHECKS["MM117"]
HOST_MEMORY: Final = CHECKS["MM118"]
SHARED_MEMORY: Final = CHECKS["MM119"]
OPEN_FILES: Final = CHECKS["MM120"]
FOLDER: Final = CHECKS["MM121"]

# Assumptions that a setting depends on: a verdict names them.
MOVING_ASSUMPTIONS: Final = (ASSUMED_COUNT, ASSUMED_ANSWER, ASSUMED_BATCH)
