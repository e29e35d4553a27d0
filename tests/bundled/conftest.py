"""Every bundled model in turn: all tests of one follow each other, so that each is opened once."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mmcalib.engine.host import EngineHost
from mmcalib.models.catalogue import find_model
from tests.builders import some
from tests.bundled.subject import Subject
from tests.engine.conftest import NEEDS, Lab, folder_of

HERE = Path(__file__).parent
# vLLM keeps the tokenizer and processor of each that it opened: some 200 MB.
MODELS_OF_A_HOST = 12


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Group the tests of one model, and of one imaginary GPU; keep all others in place."""
    own = [index for index, item in enumerate(items) if HERE in item.path.parents]
    ordered = sorted((items[index] for index in own), key=_shared)
    for index, item in zip(own, ordered, strict=True):
        items[index] = item


def _shared(item: pytest.Item) -> tuple[str, str]:
    mark = item.get_closest_marker("xdist_group")
    return item.path.name, mark.args[0] if mark else ""


@pytest.fixture(scope="session")
def lab(with_vllm: None, engine_cache: Path, tmp_path_factory) -> Iterator[Callable[[str], Lab]]:
    """Opens a bundled model in a host that serves a dozen of them, one after the other."""
    opened: list[Lab] = []
    logs = tmp_path_factory.mktemp("engines")
    with contextlib.ExitStack() as hosts:

        def open_model(model_id: str) -> Lab:
            folder = folder_of(model_id, engine_cache)
            if opened and opened[-1].folder == folder:
                return opened[-1]
            if len(opened) % MODELS_OF_A_HOST == 0:
                hosts.close()
                log = logs / f"{len(opened)}.log"
                opened.append(Lab(hosts.enter_context(EngineHost(log=log)), folder))
            else:
                opened.append(Lab(opened[-1].host, folder))
            return opened[-1]

        yield open_model


@pytest.fixture(scope="session")
def subject(request: pytest.FixtureRequest, lab: Callable[[str], Lab]) -> Subject:
    if request.param in NEEDS:
        pytest.importorskip(NEEDS[request.param])
    geometry = some(find_model(request.param))
    return Subject(geometry, lab(geometry.id))
