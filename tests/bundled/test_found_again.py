"""The configurations that are kept with the figures of bundled models, derived again."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from mmcalib.engine.host import EngineHost
from mmcalib.models import find
from mmcalib.models.figures import kept
from tests.bundled.known import SLICE

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from kept.found import found

pytestmark = [pytest.mark.engine, pytest.mark.slow]


@pytest.mark.parametrize("model_id", [one for one in SLICE if one in kept()])
def test_a_kept_configuration_is_derived_again(
    host: EngineHost, tmp_path: Path, model_id: str
) -> None:
    geometry = find(model_id)
    assert geometry is not None
    again, figures = found(geometry, host, tmp_path), kept()[model_id]
    assert again.calibrated == figures.calibrated
    assert (again.tokens, again.knobs) == (figures.tokens, figures.knobs)
