"""vLLM's startup rehearsed in one child per GPU, shared by all tests of the session."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from mmcalib.domain.memory import EncoderStep, RehearsedMemory
from mmcalib.engine.host import EngineHost
from mmcalib.engine.messages import Rehearse
from mmcalib.models.gpus import find_gpu as find_gpu
from tests.engine.conftest import QWEN, folder_of


class Theatre:
    """A child on an imaginary GPU, and the models that are rehearsed in it."""

    def __init__(self, host: EngineHost, gpu_name: str, cache: Path) -> None:
        self.host, self.gpu = host, find_gpu(gpu_name)
        self._cache = cache

    def folder(self, model_id: str = QWEN) -> Path:
        return folder_of(model_id, self._cache)

    def rehearse(self, model: str = QWEN, *steps: EncoderStep, **args: object) -> RehearsedMemory:
        request = Rehearse({"model": str(self.folder(model)), **args}, self.gpu, steps)
        return self.host.ask(request, "rehearsing")

    def bytes_of(self, model_id: str = QWEN, **engine_args: object) -> RehearsedMemory:
        """The same without the time that it took, to be compared."""
        return replace(self.rehearse(model_id, **engine_args), seconds=0.0)


@pytest.fixture(scope="session")
def theatres(with_vllm, tmp_path_factory, engine_cache: Path) -> Iterator[Callable[[str], Theatre]]:
    """Opens one child per GPU's name: a child imagines one for good."""
    opened: dict[str, Theatre] = {}
    with ExitStack() as hosts:

        def on(gpu_name: str) -> Theatre:
            if gpu_name not in opened:
                log = tmp_path_factory.mktemp("rehearsal") / "engine.log"
                host = hosts.enter_context(EngineHost(log=log))
                opened[gpu_name] = Theatre(host, gpu_name, engine_cache)
            return opened[gpu_name]

        yield on


@pytest.fixture(scope="session")
def h100(theatres: Callable[[str], Theatre]) -> Theatre:
    return theatres("H100-80G")


@pytest.fixture(scope="session")
def qwen(h100: Theatre) -> RehearsedMemory:
    """Qwen2.5-VL-3B as `vllm serve` would start it without any option."""
    return h100.rehearse()
