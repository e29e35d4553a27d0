"""Texts counted without vLLM, against vLLM's own renderer."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mmcalib.corpus.asking import bare
from mmcalib.corpus.content_parts import MODALITY_OF, PART_OF, url_part
from mmcalib.domain.shapes import Modality
from mmcalib.engine.messages import (
    BareRequest,
    BoundTexts,
    CountTexts,
    FindRecipe,
    RecipeFound,
    TextsCounted,
)
from tests.conftest import ROOT
from tests.engine.checkpoints import TEMPLATE, speaking
from tests.engine.conftest import Lab
from tests.engine.test_texts import texts, tools

pytestmark = pytest.mark.engine

QWEN25, QWEN3 = "Qwen/Qwen2.5-VL-3B-Instruct", "Qwen/Qwen3-VL-2B-Instruct"
GEMMA, LLAVA = "google/gemma-3-4b-it", "llava-hf/llava-v1.6-mistral-7b-hf"
INTERN, WHISPER = "OpenGVLab/InternVL2-2B", "openai/whisper-large-v3"
SPEAKING = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
PROSE = (ROOT / "docs" / "how-it-works.md").read_text().split()


@pytest.fixture(scope="module")
def speaks(
    lab: Callable[[str], Lab], host: Any, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., tuple[Lab, RecipeFound]]:
    """A bundled model with a vocabulary of words and a template, and what was found of it."""

    def find(name: str, template: str | None) -> tuple[Lab, RecipeFound]:
        folder = tmp_path_factory.mktemp("speaking") / "model"
        model = Lab(host, speaking(lab(name).folder, folder, template))
        asks = FindRecipe(tuple(model.opened.modalities))
        return model, host.ask(asks, "finding a recipe")

    return find


def counted(model: Lab, request: BareRequest) -> TextsCounted:
    return model.host.ask(CountTexts((request,)), "counting")


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


def test_what_whisper_hears_is_no_part_of_its_text(
    speaks: Callable[..., tuple[Lab, RecipeFound]],
) -> None:
    """It takes one clip: two were tried, and so there was no bound either."""
    model, found = speaks(WHISPER, SPEAKING)
    assert found.recipe is not None, found.why
    assert found.recipe.grown == {"audio": 0}
    bound = model.host.ask(BoundTexts(("audio",)), "bounding").bound
    assert bound.compared, bound.why
    clip = {"role": "user", "content": ["hello", url_part("audio_url", "x")]}
    answer = counted(model, BareRequest(bare([clip]), {}, {"audio": 1}))
    assert (answer.compared, answer.differs) == (1, "")


words = st.one_of(texts, st.lists(st.sampled_from(PROSE), max_size=60).map(" ".join))
parts = st.lists(
    st.one_of(
        words,
        words.map(lambda said: {"type": "text", "text": said}),
        words.map(lambda said: {"type": "refusal", "refusal": said}),
        words.map(lambda said: {"type": "thinking", "thinking": said}),
        st.sampled_from([PART_OF["image"], PART_OF["video"]]).map(lambda kind: url_part(kind, "x")),
    ),
    max_size=5,
)
arguments = st.one_of(
    st.dictionaries(words, st.one_of(words, st.integers(), st.none())).map(json.dumps),
    st.sampled_from(["", "[]", "{", "1"]),
)
calls = st.lists(
    st.builds(
        lambda name, given: {
            "type": "function",
            "id": "1",
            "function": {"name": name, "arguments": given},
        },
        words,
        arguments,
    ),
    max_size=3,
)
turn = st.one_of(
    st.fixed_dictionaries(
        {"role": st.just("user"), "content": st.one_of(words, parts)}, optional={"name": words}
    ),
    st.fixed_dictionaries(
        {"role": st.just("assistant"), "content": st.one_of(words, st.none())},
        optional={"tool_calls": calls, "reasoning_content": words, "reasoning": words},
    ),
    st.fixed_dictionaries(
        {
            "role": st.just("tool"),
            "tool_call_id": st.just("1"),
            "content": st.one_of(
                words,
                st.lists(words.map(lambda said: {"type": "text", "text": said}), max_size=3),
            ),
        }
    ),
    st.fixed_dictionaries({"role": st.sampled_from(["system", "developer"]), "content": words}),
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "template"), [(QWEN25, TEMPLATE), (QWEN3, TEMPLATE), (INTERN, None)]
)
def test_a_recipe_never_comes_to_another_number_than_vllm(
    speaks: Callable[..., tuple[Lab, RecipeFound]], name: str, template: str | None
) -> None:
    """Over conversations with system turns, tools, calls, items and words of all kinds."""
    model, found = speaks(name, template)
    assert found.recipe is not None, found.why
    kinds = found.recipe.grown
    seen = {"taken": 0, "compared": 0}

    @settings(
        max_examples=40,
        deadline=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.lists(turn, min_size=1, max_size=7), tools)
    def check(messages: list[dict[str, Any]], given_tools: list[Any]) -> None:
        fields = {"tools": given_tools} if given_tools else {}
        items = Counter(modality_of(part) for m in messages for part in m["content"] or ())
        if any(modality and modality not in kinds for modality in items):
            return
        named: dict[Modality, int] = {m: items[m] for m in kinds if items[m]}
        answer = counted(model, BareRequest(bare(messages), fields, named))
        assert answer.differs == ""
        seen["taken"] += answer.tokens[0] is not None
        seen["compared"] += answer.compared

    check()
    # The others have a developer's turn.
    assert seen["compared"] > seen["taken"] // 2 >= 10, seen


def modality_of(part: object) -> Modality | None:
    kind = part.get("type") if isinstance(part, dict) else None
    return MODALITY_OF.get(str(kind))
