"""Every bundled model in turn: all tests of one follow each other, so that each is opened once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from mmcalib.models import find
from tests.bundled.subject import Subject
from tests.engine.conftest import NEEDS, Lab, lab

__all__ = ["lab"]

HERE = Path(__file__).parent


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of one model together, and those of one imaginary GPU, where pytest would go through
    all models for each test. What stands elsewhere stays where it is.
    """
    own = [index for index, item in enumerate(items) if HERE in item.path.parents]
    ordered = sorted((items[index] for index in own), key=_shared)
    for index, item in zip(own, ordered, strict=True):
        items[index] = item


def _shared(item: pytest.Item) -> tuple[str, str]:
    """The file, and what its tests share."""
    mark = item.get_closest_marker("xdist_group")
    return item.path.name, mark.args[0] if mark else ""


@pytest.fixture(scope="session")
def subject(request: pytest.FixtureRequest, lab: Callable[[str], Lab]) -> Subject:
    if request.param in NEEDS:
        pytest.importorskip(NEEDS[request.param])
    geometry = find(request.param)
    assert geometry is not None
    return Subject(geometry, lab(geometry.id))
