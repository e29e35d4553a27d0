from collections.abc import Iterator

import pytest

from tests.conformance.against import judging
from tests.upstream import needs_device

# isort: split
from judging.judge import Judge


@pytest.fixture(scope="module")
def judge(request, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Judge]:
    """Judge the module's MODEL."""
    model: str = request.module.MODEL
    with judging(model, tmp_path_factory.mktemp(model)) as judge:
        yield judge


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "judge" in getattr(item, "fixturenames", ()):
            item.add_marker(needs_device)
