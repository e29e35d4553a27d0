"""What the forms of a configuration for other systems have in common."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import yaml

from mmcalib import wording
from mmcalib.report.emit.env import left_out_words
from mmcalib.result.calibration import CalibrationDocument
from mmcalib.result.engine_yaml import visible_yaml

# Argument lists are read by people; no line of them is folded.
_WIDTH = 10_000


def variables(calibration: CalibrationDocument) -> dict[str, str]:
    """Of the server's environment: the limits on media that were raised for the run."""
    given = calibration.server.environment if calibration.server else {}
    return {name: str(value) for name, value in given.items()}


def image(calibration: CalibrationDocument) -> str:
    """vLLM's official image of the release that was calibrated with."""
    release = re.match(r"\d+\.\d+\.\d+", calibration.tool.vllm)
    return f"vllm/vllm-openai:{f'v{release[0]}' if release else 'latest'}"


def head(calibration: CalibrationDocument, *lines: str) -> str:
    """Comments on top: what it is, and what was left out."""
    server = calibration.server
    said = [
        f"# vLLM configuration for {wording.plain(calibration.model.id)}, made by mmcalib.",
        *(f"# {wording.plain(line)}" for line in lines),
        *(left_out_words(server) if server else ()),
    ]
    return "".join(f"{line}\n" for line in said)


class _Dumper(yaml.SafeDumper):
    """Text of several lines as a block, as people write it."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


def dump(document: Mapping[str, Any]) -> str:
    """As YAML."""
    return visible_yaml(_Dumper, document, width=_WIDTH)


def without(config: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """What is set of it, but for these."""
    return {n: v for n, v in config.items() if n not in names and v is not None}
