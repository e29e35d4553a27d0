"""In which words a remedy is given: flags of `mmcalib run`, or lines of a file for vLLM."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any, TypeVar

import yaml

from mmcalib.domain.knobs import Knob, Value, merged_nested
from mmcalib.text import flag

T = TypeVar("T")


class Dialect(Enum):
    """`FLAGS` of `mmcalib run`, which derives the configuration; `LINES` of the file that somebody
    wrote and `mmcalib validate` judges.
    """

    FLAGS = "flags"
    LINES = "lines"

    def say(self, *, flags: T, lines: T) -> T:
        """The one of both that this dialect has."""
        return flags if self is Dialect.FLAGS else lines

    def number(self, value: int) -> str:
        return self.say(flags=f"{value}", lines=f"{value:,}")

    def setting(self, name: str, value: Any) -> str:
        """What sets an option of vLLM by that name."""
        return self.say(flags=f"{flag(name)} {value}", lines=line(name, value))


def line(name: str, value: Any) -> str:
    """One setting on one line of YAML, such as `limit-mm-per-prompt: {video: 0}`."""
    return f"{name.replace('_', '-')}: {flow(value)}"


def line_of(knob: Knob, value: Value, engine_args: Mapping[str, Any]) -> str:
    """The line that gives a knob this value, in the spelling that this model's processor has, and
    keeps what the arguments set beside it.
    """
    return line(knob.argument, merged_nested(engine_args.get(knob.argument), knob.kwargs(value)))


def flow(value: Any) -> str:
    """A value of YAML on one line."""
    words = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=1 << 30)
    return words.removesuffix("\n").removesuffix("\n...")
