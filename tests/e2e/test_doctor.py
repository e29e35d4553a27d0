"""`mmcalib doctor` where vLLM is installed."""

import json
from pathlib import Path

import pytest

from tests.e2e.command import mmcalib
from tests.schemas import fits

pytestmark = [pytest.mark.engine, pytest.mark.slow]


def test_it_asks_vllm_where_it_would_run(engine_cache: Path) -> None:
    done = mmcalib(engine_cache, "doctor", "--json")
    fits("doctor", done.stdout)
    found = json.loads(done.stdout)
    assert found["verdict"] == "pass"
    assert found["backend"]["device"] in ("cpu", "cuda")
    assert found["backend"]["vllm"]
    checks = {check["name"]: check["status"] for check in found["checks"]}
    assert checks["engine"] in ("pass", "warn")
    assert checks["torch libraries"] in ("pass", "warn")
    assert "mmcalib run works here" in done.stderr
