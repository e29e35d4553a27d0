"""`engine.yaml`: the configuration for `vllm serve --config`, each value with its reason."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import yaml

from mmcalib.report.calibration import Calibration, Evidence

_WIDTH = 100


def engine_yaml(calibration: Calibration, serve_with: str) -> str:
    """The file's text. Keys have dashes, nested mappings stay YAML, names inside keep underscores
    (R9); nothing is null, and a false is written as `no-x: true`.
    """
    tool, model = calibration.tool, calibration.model
    lines = [
        f"# vLLM configuration for {_line(model.id)}, calibrated by mmcalib {tool.mmcalib}",
        f"# on {calibration.corpus.items} items with vLLM {tool.vllm}, "
        f"transformers {tool.transformers}; {calibration.created_at}",
        f"# serve:  {_line(serve_with)}",
        "",
    ]
    for key, value in calibration.engine_config.items():
        lines += _comments(key, calibration.limits.evidence)
        lines.append(_entry(key, value))
    return "\n".join(lines)


def _entry(key: str, value: Any) -> str:
    name = key.replace("_", "-")
    if value is False:
        name, value = f"no-{name}", True
    return yaml.safe_dump({name: value}, sort_keys=False, width=_WIDTH, allow_unicode=True)


def _comments(key: str, evidence: Sequence[Evidence]) -> list[str]:
    """One comment line per reason that concerns the key."""
    return [
        f"# {_line(entry.setting)}: {_line(entry.reason)} [{entry.label}]"
        + (f" — {_line(entry.exemplar)}" if entry.exemplar else "")
        for entry in evidence
        if entry.setting == key or entry.setting.startswith(f"{key}.")
    ]


def _line(text: str) -> str:
    """File names may hold line breaks and control characters; a comment must stay a comment."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
