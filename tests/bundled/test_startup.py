"""vLLM's startup of every bundled model on three imaginary GPUs: a small one, a large one, and the
smallest on which the model starts.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from mmcalib.engine.host import EngineHost
from mmcalib.errors import VllmRefused
from mmcalib.gpus.catalogue import find as find_gpu
from mmcalib.models import bundled
from mmcalib.models.figures import kept
from tests.bundled.known import SLICE, Line, failing
from tests.rehearsal.conftest import Theatre

pytestmark = [pytest.mark.engine, pytest.mark.slow]

SMALL, LARGE = "L4", "H100-80G"


@pytest.fixture(scope="session")
def theatre(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, engine_cache: Path
) -> Iterator[Theatre]:
    """One child at a time: each takes a gigabyte."""
    with EngineHost(log=tmp_path_factory.mktemp("rehearsal") / "engine.log") as host:
        yield Theatre(host, request.param, engine_cache)


def rehearsals() -> Iterator[tuple[str, str, str]]:
    """A GPU, a model, and which configuration: vLLM's defaults, or what mmcalib derived."""
    for geometry in bundled():
        figures = kept().get(geometry.id)
        if figures is None or figures.weights_bytes is None:
            continue
        for gpu in dict.fromkeys((SMALL, LARGE, figures.default_gpu)):
            if gpu is not None:
                yield gpu, geometry.id, "default"
        if figures.calibrated_gpu is not None:
            yield figures.calibrated_gpu, geometry.id, "calibrated"


def cases() -> Iterator[object]:
    by_id = {geometry.id: geometry for geometry in bundled()}
    for gpu, model_id, configuration in sorted(rehearsals()):
        marks = [pytest.mark.xdist_group(gpu), *failing(by_id[model_id], Line.STARTS, (gpu,))]
        if model_id not in SLICE or gpu not in (SMALL, LARGE):
            marks.append(pytest.mark.models)
        name = f"{gpu}-{model_id}-{configuration}"
        yield pytest.param(gpu, model_id, configuration, marks=marks, id=name)


# Where some are not indirect, pytest takes a fixture for the test's own unless it is told.
@pytest.mark.parametrize(
    ("theatre", "model_id", "configuration"), cases(), indirect=["theatre"], scope="session"
)
def test_it_starts_where_it_was_found_to(
    theatre: Theatre, model_id: str, configuration: str
) -> None:
    figures = kept()[model_id]
    given = figures.calibrated if configuration == "calibrated" else {}
    try:
        found = theatre.rehearse(model_id, **given)
    except VllmRefused as error:
        if "Unable to allocate" in error.message:
            pytest.skip(f"vLLM wants more of this machine than there is: {error.message}")
        raise
    least = figures.calibrated_gpu if configuration == "calibrated" else figures.default_gpu
    starts = least is not None and find_gpu(least).total_bytes <= theatre.gpu.total_bytes
    assert (found.problem == "") == starts, found.problem
    assert figures.weights_bytes is not None
    if configuration == "default":
        # Buffers of a step's tokens differ by GPU, and so does how a kernel wants its weights.
        assert found.weights_bytes == pytest.approx(figures.weights_bytes, rel=0.02)
    else:
        # A tower of a modality that is not served is not loaded: Qwen2.5-Omni-3B's for audio has
        # 13 % of its bytes.
        assert 0.86 * figures.weights_bytes < found.weights_bytes < 1.02 * figures.weights_bytes
    assert starts == (found.kv_cache_tokens is not None)
    assert starts or "memory" in found.problem
