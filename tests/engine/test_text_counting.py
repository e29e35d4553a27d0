"""Texts counted by transformers alone, against vLLM's own renderer."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mmcalib.admission.admits import TextCounter
from mmcalib.corpus.chat import PART_OF, ChatRequest, url_part
from mmcalib.engine.messages import CountingResult, CountTexts, FindCounting, OpenModel
from tests.builders import some
from tests.conftest import ROOT
from tests.engine.checkpoints import TEMPLATE, speaking
from tests.engine.conftest import Lab, forget
from tests.engine.test_texts import texts
from tests.schemas import DATA

pytestmark = pytest.mark.engine
QWEN25, QWEN3 = "Qwen/Qwen2.5-VL-3B-Instruct", "Qwen/Qwen3-VL-2B-Instruct"
GEMMA, LLAVA = "google/gemma-3-4b-it", "llava-hf/llava-v1.6-mistral-7b-hf"
INTERN = "OpenGVLab/InternVL2-2B"
PROSE = (ROOT / "docs" / "explain" / "how-it-works.md").read_text().split()


@pytest.fixture(scope="module")
def speaks(lab, host, tmp_path_factory) -> Callable[..., tuple[Lab, CountingResult]]:
    """A bundled model with a vocabulary of words and a template, and what was found of it."""

    def find(name: str, template: str | None) -> tuple[Lab, CountingResult]:
        folder = tmp_path_factory.mktemp("speaking") / "model"
        model = Lab(host, speaking(lab(name).folder, folder, template))
        return model, host.ask(FindCounting(tuple(model.opened.modalities)), "counting")

    return find


def test_the_server_s_template_is_counted_with(speaks: Callable[..., Any]) -> None:
    model, plain = speaks(QWEN25, TEMPLATE)
    own = "{{ lead }}" + TEMPLATE
    given = {"chat_template": own, "default_chat_template_kwargs": {"lead": "word " * 9}}
    try:
        model.host.ask(OpenModel(str(model.folder), engine_args=given), "opening")
        result = model.host.ask(FindCounting(tuple(model.opened.modalities)), "counting")
    finally:
        forget(model.host)
    found = some(result.counting)
    assert (found.template, found.kwargs) == (own, given["default_chat_template_kwargs"])
    assert (found.around, found.compared) == (plain.counting.around, plain.counting.compared)


# As Qwen3-VL's, it writes media of users and tools only; as Gemma 3's, it wants turns in order.
HABITS = (DATA / "templates" / "habits.jinja").read_text("utf-8")


def test_an_item_that_the_template_drops_is_refused_as_vllm_does(speaks) -> None:
    """It fits, said `check`; the server answered 500, and again to the next one's picture."""
    model, found = speaks(QWEN25, HABITS)
    assert found.counting is not None, found.why
    assert found.counting.written["image"] == "<|vision_start|><|image_pad|><|vision_end|>"
    assert found.counting.fields, found.why
    counting = TextCounter(str(model.folder), found.counting, "openai")
    image, answer = url_part("image_url", "x"), {"role": "assistant", "content": "b"}
    user = {"role": "user", "content": ["a", image]}
    call = {"id": "1", "type": "function", "index": 0, "function": {"name": "f", "arguments": ""}}
    told = {"role": "tool", "tool_call_id": "1", "content": [image, "a"]}
    conversations: tuple[list[dict[str, Any]], ...] = (
        [user, {**answer, "reasoning": "c", "name": "n"}],
        [{**user, "name": "n"}],
        [user, {**answer, "tool_calls": [call]}, told],
        [{"role": "developer", "content": "s"}, user, {"role": "system", "content": "t"}],
        [{"role": "critic", "content": [{"type": "text", "text": "a", "cache_control": {}}]}],
    )
    for turns in conversations:
        request = ChatRequest(turns).strip_media()
        tokens = counting.tokens(request)
        assert isinstance(tokens, int), turns
        assert tokens == counted(model, request)
    drops = "the chat template drops the image in the {} message"
    for role in ("system", "developer", "assistant", "function", "critic"):
        request = ChatRequest([{"role": role, "content": [image]}, user]).strip_media()
        assert counting.tokens(request) == drops.format(role)
        (why,) = model.host.ask(CountTexts((request,)), "counting")
        assert str(why).startswith("Failed to apply prompt replacement for mm_items['image']")
    both = ChatRequest([user, {**user, "name": "n"}]).strip_media()
    assert "roles must alternate" in str(counting.tokens(both))
    assert counted(model, both) is None


def counted(model: Lab, request: ChatRequest) -> int | None:
    """Count by vLLM; None where it refuses."""
    (tokens,) = model.host.ask(CountTexts((request,)), "counting")
    return tokens if isinstance(tokens, int) else None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "template", "items"),
    [
        (QWEN25, TEMPLATE, {"image": -1, "video": -1}),
        (QWEN3, TEMPLATE, {"image": -1, "video": -1}),
        # Its template takes texts alone, with marks before them.
        (INTERN, None, {"image": -3}),
        (LLAVA, None, {"image": -1}),
        # Line breaks around its images merge with those of the text.
        (GEMMA, None, {}),
    ],
)
def test_what_agrees_with_vllm_is_found(speaks, name: str, template: str | None, items) -> None:
    _, found = speaks(name, template)
    assert found.counting is not None, found.why
    assert found.counting.around == items
    assert found.counting.compared >= 40
    assert found.counting.fields, found.why
    assert ("image items" in found.why) == (not items)


words = st.one_of(texts, st.lists(st.sampled_from(PROSE), max_size=60).map(" ".join))
parts = st.lists(
    st.one_of(
        words,
        words.map(lambda said: {"type": "text", "text": said}),
        st.sampled_from([PART_OF["image"], PART_OF["video"]]).map(lambda kind: url_part(kind, "x")),
    ),
    max_size=5,
)
arguments = st.sampled_from(['{"a": [1.50, "é"]}', "", "[1]", '{"a": ', "null"])
call = st.fixed_dictionaries(
    {
        "id": words,
        "type": st.just("function"),
        "function": st.fixed_dictionaries({"name": words, "arguments": arguments}),
    }
)
calls = st.lists(call, min_size=1, max_size=2)


def of(*roles: str, **said: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({"role": st.sampled_from(roles), **said})


turn = st.one_of(
    of("user", content=words | parts),
    of("assistant", "system", content=words),
    of("assistant", content=st.none() | words, tool_calls=calls),
    of("tool", content=words | st.lists(words), tool_call_id=words),
)
tool = st.fixed_dictionaries(
    {"name": words.filter(bool)},
    optional={
        "description": words,
        "parameters": st.just({"type": "object", "properties": {"a": {"type": "integer"}}}),
        "strict": st.booleans(),
        "own": words,
    },
).map(lambda function: {"type": "function", "function": function})
fields = st.fixed_dictionaries(
    {},
    optional={
        "tools": st.lists(tool, min_size=1, max_size=3),
        "reasoning_effort": st.sampled_from(["none", "low", "high"]),
        "add_generation_prompt": st.booleans(),
        "continue_final_message": st.booleans(),
        "add_special_tokens": st.booleans(),
        "documents": st.just([{"title": "a", "text": "b"}]),
        "chat_template_kwargs": st.dictionaries(
            st.sampled_from(["enable_thinking", "x", "add_generation_prompt"]), st.booleans()
        ),
    },
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "template"), [(QWEN25, TEMPLATE), (QWEN3, TEMPLATE), (INTERN, None)]
)
def test_it_never_comes_to_another_number_than_vllm(speaks, name: str, template) -> None:
    """Over conversations with system turns, items and words of all kinds."""
    model, found = speaks(name, template)
    assert found.counting is not None, found.why
    how, form = found.counting, "string" if name == INTERN else "openai"
    counter = TextCounter(str(model.folder), how, form)
    seen = {"taken": 0, "compared": 0}

    @settings(max_examples=80, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(st.lists(turn, min_size=1, max_size=7), fields)
    def check(messages: list[dict[str, Any]], given: dict[str, Any]) -> None:
        choice = {"tool_choice": "none"} if "tools" in given else {}
        request = ChatRequest(messages, {**given, **choice}).strip_media()
        if not request.items().keys() <= how.around.keys():
            return
        # Before vLLM, which changes messages that it is given.
        ours = counter.tokens(request)
        theirs = counted(model, request)
        seen["taken"] += theirs is not None
        seen["compared"] += ours is not None
        # Where the template refuses it, vLLM does; it refuses more.
        assert ours == theirs or None in (ours, theirs), (ours, request)

    check()
    assert counter.why == ""
    assert seen["compared"] >= seen["taken"] >= 10, seen
