"""Texts counted without vLLM, against vLLM's own renderer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from mmcalib.census.shapes import Modality
from mmcalib.engine.messages import (
    BareRequest,
    CountTexts,
    FindRecipe,
    RecipeFound,
    TextsCounted,
)
from tests.engine.checkpoints import TEMPLATE, speaking
from tests.engine.conftest import Lab

pytestmark = pytest.mark.engine

QWEN25, QWEN3 = "Qwen/Qwen2.5-VL-3B-Instruct", "Qwen/Qwen3-VL-2B-Instruct"
GEMMA, LLAVA = "google/gemma-3-4b-it", "llava-hf/llava-v1.6-mistral-7b-hf"
INTERN = "OpenGVLab/InternVL2-2B"


@pytest.fixture(scope="module")
def speaks(
    lab: Callable[[str], Lab], host: Any, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., tuple[Lab, RecipeFound]]:
    """A bundled model with a vocabulary of words and a template, and what was found of it."""

    def find(name: str, template: str | None) -> tuple[Lab, RecipeFound]:
        folder = tmp_path_factory.mktemp("speaking") / "model"
        model = Lab(host, speaking(lab(name).folder, folder, template))
        asks = FindRecipe(tuple(model.opened.modalities))
        return model, host.ask(asks, RecipeFound, "finding a recipe")

    return find


def counted(model: Lab, request: BareRequest) -> TextsCounted:
    return model.host.ask(CountTexts((request,)), TextsCounted, "counting")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "template", "items"),
    [
        (QWEN25, TEMPLATE, {"image": -1, "video": -1}),
        (QWEN3, TEMPLATE, {"image": -1, "video": -1}),
        (INTERN, None, {"image": -3}),
        (LLAVA, None, {"image": -1}),
        # Line breaks around its images merge with those of the text.
        (GEMMA, None, {}),
    ],
)
def test_a_recipe_is_what_agrees_with_vllm(
    speaks: Callable[..., tuple[Lab, RecipeFound]],
    name: str,
    template: str | None,
    items: dict[Modality, int],
) -> None:
    _, found = speaks(name, template)
    assert found.recipe is not None, found.why
    assert found.recipe.grown == items
    assert found.recipe.tools_template is not None
    assert found.recipe.compared >= 40
    assert ("image items" in found.why) == (not items)
