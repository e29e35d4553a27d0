"""The emitted file through vLLM's own parser (R9)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mmcalib.checks.check import Check
from mmcalib.checks.file import ROUND_TRIP
from mmcalib.engine.host import EngineHost
from mmcalib.engine.messages import ParseServeConfig
from mmcalib.errors import EngineError, VllmMoved


def round_trip(host: EngineHost, path: Path, engine_config: Mapping[str, Any]) -> Check:
    """Whether `vllm serve --config` reads the file as it was meant (R9), field by field."""
    name = ROUND_TRIP
    try:
        parsed = host.ask(ParseServeConfig(str(path)), "parsing the config file")
    except VllmMoved as error:
        return Check(name, "warn", f"not proven: {error.message}", error.hint)
    except EngineError as error:
        return Check(name, "fail", error.message, "report this as a bug of mmcalib")
    differing = [
        f"{key}: wrote {engine_config.get(key)!r}, vLLM reads {parsed.engine_args.get(key)!r}"
        for key in sorted({*engine_config, *parsed.engine_args})
        if engine_config.get(key) != parsed.engine_args.get(key)
    ]
    if differing:
        return Check(name, "fail", "; ".join(differing), "report this as a bug of mmcalib")
    return Check(name, "pass", f"vLLM's own parser reads all {len(engine_config)} settings back")
