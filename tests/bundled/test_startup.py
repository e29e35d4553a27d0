"""vLLM's startup of every bundled model on a small and a large imaginary GPU."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from mmcalib.engine.host import EngineHost
from mmcalib.errors import VllmRefused
from mmcalib.models.catalogue import bundled_models
from tests.bundled.known import SLICE, Line, failing
from tests.rehearsal.conftest import Theatre

pytestmark = [pytest.mark.engine, pytest.mark.slow]
SMALL, LARGE = "L4", "H100-80G"
# vLLM builds no model of it without weights.
NOT_BUILT = {"google/gemma-3n-E4B-it"}


@pytest.fixture(scope="session")
def theatre(request, tmp_path_factory, engine_cache: Path) -> Iterator[Theatre]:
    """One child at a time: each takes a gigabyte."""
    with EngineHost(log=tmp_path_factory.mktemp("rehearsal") / "engine.log") as host:
        yield Theatre(host, request.param, engine_cache)


def cases() -> Iterator[object]:
    for gpu in (SMALL, LARGE):
        for geometry in bundled_models():
            marks = [pytest.mark.xdist_group(gpu), *failing(geometry, Line.STARTS, (gpu,))]
            if geometry.id not in SLICE:
                marks.append(pytest.mark.models)
            if geometry.id not in NOT_BUILT:
                yield pytest.param(gpu, geometry.id, marks=marks, id=f"{gpu}-{geometry.id}")


# Where some are not indirect, pytest takes a fixture for the test's own unless it is told.
@pytest.mark.parametrize(("theatre", "model_id"), cases(), indirect=["theatre"], scope="session")
def test_it_starts_where_there_is_memory_enough(theatre: Theatre, model_id: str) -> None:
    if theatre.host.is_closed:  # by the model before
        theatre.host.revive()
    try:
        found = theatre.rehearse(model_id)
    except VllmRefused as error:
        if "Unable to allocate" in error.message:
            pytest.skip(f"vLLM wants more of this machine than there is: {error.message}")
        raise
    starts = found.problem == ""
    assert starts == (found.kv_cache_tokens is not None)
    assert starts or "memory" in found.problem
    assert found.weights_bytes > 0
    if found.weights_bytes > found.requested_bytes:
        assert not starts
    if model_id in SLICE and theatre.gpu.name == LARGE:
        assert starts
