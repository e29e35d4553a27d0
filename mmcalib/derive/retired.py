"""Removed knobs that old commands and old advice still name, and their replacements."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RetiredKnob:
    """A knob and the first version without it; `today` is its replacement, if any."""

    name: str
    absent_in: str
    today: str | None


# Without a named source: checked in the argument parser or environment table of the installed
# 0.10.2, 0.11.0, 0.23.0 and 0.32.0.
RETIRED = (
    # vLLM PR 36216; present in 0.17.1 and absent in 0.18.0 by signature (unsloth-zoo#1210).
    RetiredKnob("--swap-space", "0.18.0", None),
    # "deprecated and will be removed in v0.13" (0.10.2, 0.11.0 engine/arg_utils.py; PR 22441).
    RetiredKnob("--disable-mm-preprocessor-cache", "0.23.0", "--mm-processor-cache-gb 0"),
    RetiredKnob("VLLM_MM_INPUT_CACHE_GIB", "0.23.0", "--mm-processor-cache-gb"),
    # "Please use `--mm-encoder-tp-mode data` instead" (0.10.2 engine/arg_utils.py).
    RetiredKnob("--enable-multimodal-encoder-data-parallel", "0.23.0", "--mm-encoder-tp-mode data"),
    RetiredKnob("--max-seq-len-to-capture", "0.11.0", "--max-cudagraph-capture-size"),
    RetiredKnob("--cuda-graph-sizes", "0.23.0", "--cudagraph-capture-sizes"),
    RetiredKnob("--task", "0.23.0", "--runner and --convert"),
    RetiredKnob("--disable-log-requests", "0.23.0", "--no-enable-log-requests"),
    RetiredKnob("--guided-decoding-backend", "0.23.0", "--structured-outputs-config.backend"),
    # vLLM PR 28006; absent in 0.13.0 by its own words (gpustack#4236).
    RetiredKnob("--rope-scaling", "0.13.0", """--hf-overrides '{"rope_parameters": {...}}'"""),
    RetiredKnob(
        "--rope-theta", "0.13.0", """--hf-overrides '{"rope_parameters": {"rope_theta": ...}}'"""
    ),
    RetiredKnob("--disable-async-output-proc", "0.11.0", None),
    RetiredKnob("--max-num-partial-prefills", "0.32.0", None),
    RetiredKnob("--calculate-kv-scales", "0.32.0", None),
    RetiredKnob("VLLM_ATTENTION_BACKEND", "0.23.0", "--attention-backend"),
    RetiredKnob("VLLM_USE_V1", "0.23.0", None),
)

# vLLM's parser accepts `--swap_space` for `--swap-space`.
_BY_SPELLING = {
    spelling: knob
    for knob in RETIRED
    for spelling in {knob.name, knob.name[:2] + knob.name[2:].replace("-", "_")}
}
_BY_ARGUMENT = {
    knob.name.removeprefix("--").replace("-", "_"): knob
    for knob in RETIRED
    if knob.name.startswith("--")
}
_PATTERN = re.compile(
    r"(?<![\w-])(?:" + "|".join(map(re.escape, sorted(_BY_SPELLING))) + r")(?![\w-])"
)


def find_retired(text: str) -> Iterator[RetiredKnob]:
    """Yield the retired flags and environment variables in a text, by exact spelling."""
    if "--" in text or "VLLM_" in text:
        for match in _PATTERN.finditer(text):
            yield _BY_SPELLING[match.group()]


def find_retired_arguments(arguments: Mapping[str, object]) -> Iterator[RetiredKnob]:
    """Yield the retired ones among engine arguments."""
    for name in arguments:
        if name in _BY_ARGUMENT:
            yield _BY_ARGUMENT[name]
