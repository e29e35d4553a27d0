"""Models opened in the session's one engine host."""

from collections.abc import Callable
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import pytest

from mmcalib.domain.knobs import DEFAULT, Setting
from mmcalib.domain.memory import Budget
from mmcalib.domain.model import Cost
from mmcalib.engine.host import EngineHost
from mmcalib.engine.messages import Blank, ComputeBudget, CountEmbeds, File, Measure, OpenModel
from mmcalib.models.catalogue import find_model
from mmcalib.models.checkpoint import materialise
from tests.builders import expect, some

QWEN = "Qwen/Qwen2.5-VL-3B-Instruct"
# What processors import that vLLM does not bring.
NEEDS = {"HuggingFaceTB/SmolVLM2-2.2B-Instruct": "num2words"}


# The lab whose model a host serves: the last that was opened there.
_SERVED: WeakKeyDictionary[EngineHost, "Lab"] = WeakKeyDictionary()


def forget(host: EngineHost) -> None:
    """Let the next lab of this host open its model, where a test has opened another."""
    _SERVED.pop(host, None)


class Lab:
    """A model opened in a real engine host, with the questions that tests ask of it."""

    def __init__(self, host: EngineHost, folder: Path) -> None:
        self.host, self.folder = host, folder
        self.opened = host.ask(OpenModel(str(folder)), "opening")
        _SERVED[host] = self

    def costs(self, *subjects: Blank | File, setting: Setting = DEFAULT) -> list[Cost | str]:
        """A cost per subject, or the words with which vLLM refuses it."""
        answers = self.host.measure(Measure(setting, subjects), "measuring")
        return [answer.cost or answer.refusal for answer in answers]

    def cost(self, subject: Blank | File, **kwargs: Any) -> Cost:
        return expect(Cost, self.costs(subject, setting=Setting(**kwargs))[0])

    def costs_as_counted(self, *blanks: Blank, setting: Setting = DEFAULT) -> list[Cost]:
        """Costs of those that vLLM takes; it counts as much of each, and nothing of the others."""
        costs = self.costs(*blanks, setting=setting)
        answer = self.host.ask(CountEmbeds(setting, blanks), "counting")
        taken = []
        for cost, embeds, sampled in zip(costs, answer.embeds, answer.sampled, strict=True):
            if isinstance(cost, Cost):
                assert (embeds, sampled) == (cost.embeds, cost.sampled)
                taken.append(cost)
            else:
                assert embeds is None
        return taken

    def budget(self, *, build_dummy: bool = True, **engine_args: object) -> Budget:
        request = ComputeBudget({"model": str(self.folder), **engine_args}, build_dummy)
        return self.host.ask(request, "computing a budget")


@pytest.fixture(scope="session")
def lab(host: EngineHost, engine_cache: Path) -> Callable[[str], Lab]:
    """Opens a bundled model, unless it is the one that the host serves."""

    def open_model(model_id: str) -> Lab:
        folder = folder_of(model_id, engine_cache)
        served = _SERVED.get(host)
        return served if served is not None and served.folder == folder else Lab(host, folder)

    return open_model


def folder_of(model_id: str, engine_cache: Path) -> Path:
    """Return the folder of a bundled model's geometry as a checkpoint."""
    return materialise(some(find_model(model_id)), engine_cache / model_id.replace("/", "--"))


@pytest.fixture
def qwen(lab: Callable[[str], Lab]) -> Lab:
    return lab(QWEN)
