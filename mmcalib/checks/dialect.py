"""Settings as a user writes them into a file for `vllm serve --config`."""

from __future__ import annotations

from typing import Any

import yaml

from mmcalib.domain.knobs import Knob
from mmcalib.domain.media_option import Value


def line(name: str, value: Any) -> str:
    """One setting on one line of YAML, such as `limit-mm-per-prompt: {video: 0}`."""
    return f"{name.replace('_', '-')}: {flow(value)}"


def line_of(knob: Knob, value: Value) -> str:
    """The line that gives a knob this value, in the spelling that this model's processor has."""
    return line(knob.argument, knob.kwargs(value))


def flow(value: Any) -> str:
    """A value of YAML on one line."""
    words = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=1 << 30)
    return words.removesuffix("\n").removesuffix("\n...")
