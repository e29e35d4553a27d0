from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mmcalib.domain.budget import Budget
from mmcalib.models import resolve
from mmcalib.progress import Silent
from mmcalib.workflows.proof import default
from mmcalib.workflows.proof.startup import Launch

pytestmark = pytest.mark.engine

DEFAULT = Budget(16_384, 16_384, {}, {}, {}, "video", 1, {}, 128_000, 2048, 256)


def test_a_default_that_starts_slower_than_estimated_is_broken_off(
    tmp_path: Path, engine_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process is real; it has not even imported vLLM when it is given up."""
    monkeypatch.setattr(default, "_START_S", 0.5)
    launch = Launch(
        Path(resolve("Qwen/Qwen2.5-VL-3B-Instruct", cache_dir=engine_cache).path),
        {"max_model_len": 4096},
        DEFAULT,
        device="cpu",
        scratch=tmp_path,
        budget_s=0.0,
    )
    started: Any = SimpleNamespace(figures=SimpleNamespace(gpu=None, encoder_seconds_per_token=0.0))
    decision: Any = SimpleNamespace(default_error="", default_budget=DEFAULT)
    check = default.start_default(launch, started, decision, Silent()).check
    assert (check.name, check.status) == ("default for comparison", "skip")
    assert "broken off after 0 s" in check.detail
    assert check.remedy.startswith("--startup-budget")
