"""A file that vLLM cannot read ends a validation at its first stage, without a question to vLLM."""

from __future__ import annotations

from pathlib import Path
from typing import cast

from mmcalib.engine.host import EngineHost
from mmcalib.models import gpus
from mmcalib.progress import Silent
from mmcalib.workflows.validate.config import ValidateJob
from mmcalib.workflows.validate.validate import judge

NOBODY = cast(EngineHost, None)


def test_what_is_not_yaml_is_a_finding(tmp_path: Path) -> None:
    config = tmp_path / "c.yaml"
    config.write_text("model: [\n")
    job = ValidateJob(config, ("--port", "1"), model="m", gpu=gpus.find("L4"))
    found = judge(job, NOBODY, Silent())
    assert (found.verdict, found.model, found.gpu) == ("fail", "m", "L4")
    assert found.flags == ["--port", "1"]
    (check,) = found.checks
    assert check.detail.startswith("it is not YAML")
    assert (found.engine_config, found.budget, found.startup, found.items) == (
        None,
        None,
        None,
        "none",
    )
