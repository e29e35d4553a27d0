"""Tokens that requests need, against vLLM's own renderer and serving layer."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mmcalib.census.census import choose_sample
from mmcalib.corpus.chat import ChatRequest, text_part, url_part
from mmcalib.decision.measure import measure
from mmcalib.decision.texts import Texts, longest_prompt, smallest_context
from mmcalib.domain.knobs import DEFAULT
from mmcalib.domain.shapes import Modality
from mmcalib.engine.messages import BoundTexts, CountTexts, OpenModel
from mmcalib.gate.admission import ChatText
from mmcalib.gate.fit import Fit
from mmcalib.limits.values import Count
from mmcalib.progress import Silent
from mmcalib.workflows.corpus import LoadedCorpus, files_of, read_corpus
from tests.builders import expect, some
from tests.e2e.media import body, part, photo, write_requests
from tests.engine.checkpoints import speaking
from tests.engine.conftest import Lab, forget
from tests.programs import answer_of
from tests.upstream import needs_device

pytestmark = pytest.mark.engine
QWEN, GEMMA = "Qwen/Qwen2.5-VL-3B-Instruct", "google/gemma-3-4b-it"
LLAVA, INTERN = "llava-hf/llava-v1.6-mistral-7b-hf", "OpenGVLab/InternVL2-2B"

PICTURE = url_part("image_url", "x")
TOOL = {
    "type": "function",
    "function": {"name": "weather", "description": "of a <place>", "parameters": {"é": [1, 2]}},
}


def served(folder: Path, contexts: Sequence[int], requests: Sequence[dict[str, Any]]) -> list[Any]:
    """Per context and request: the prompt's length and the granted answer, or vLLM's refusal."""
    asked = {"model": str(folder), "contexts": contexts, "requests": requests}
    found: list[Any] = answer_of(Path(__file__).with_name("admitting.py"), asked=asked)
    return found


def example(folder: Path) -> list[dict[str, Any]]:
    """Four requests of an image and 1,500 words each, that ask for 4,096 tokens."""
    pictures = [photo(folder / f"{n}.png", 640 + 28 * n, 480) for n in range(4)]
    return [
        body(part("image", picture), text=f"{n}: {'word ' * 1500}", max_tokens=4096)
        for n, picture in enumerate(pictures)
    ]


def corpus(lab: Lab, folder: Path, requests: list[dict[str, Any]]) -> tuple[LoadedCorpus, Texts]:
    path, cache = write_requests(folder / "requests.jsonl", requests), folder / "cache"
    found = read_corpus((), [path], allowed_root=folder, cache=cache, progress=Silent())
    return found, Texts.of(lab.host, lab.opened.modalities, found.texts)


def longest(lab: Lab, found: LoadedCorpus, texts: Texts, reserve_tokens: int = 1024) -> Fit:
    """Return the longest request of `run`, under the model's own processor settings."""
    sample = choose_sample(found.census, 1)
    table, _ = measure(lab.host, found.census, DEFAULT, sample, Silent(), files_of(found))
    counts: dict[Modality, Count] = {"image": Count(1, "", "computed")}
    budget = replace(lab.budget(build_dummy=False), max_model_len=lab.opened.max_model_len)
    asked = (found.prompts, table, counts, budget, reserve_tokens, texts)
    return some(longest_prompt(*asked, encoder_decoder=False))


# Of each part what it is, with a variable in front.
TEMPLATE = (
    "{% if tools %}t{% endif %}{% for m in messages %}{{ lead }}"
    "{% for p in m.content %}{% if p.type == 'text' %}{{ p.text }}"
    "{% else %}<|vision_start|><|image_pad|><|vision_end|>{% endif %}{% endfor %}{% endfor %}"
)


def test_texts_are_rendered_by_the_server_s_template_and_its_defaults(qwen: Lab) -> None:
    """A server started so has these tokens more in each prompt."""
    asked = ChatRequest.of_user([text_part("a")])
    tools = {"tools": [TOOL], "tool_choice": "none"}
    found: list[Any] = []
    try:
        opened_as = {"chat_template_content_format": "openai"}
        for lead, more in (("", {}), ("a", {}), ("aaa", opened_as)):
            given: dict[str, Any] = {"default_chat_template_kwargs": {"lead": lead}, **more}
            given["chat_template"] = TEMPLATE
            qwen.host.ask(OpenModel(str(qwen.folder), engine_args=given), "opening")
            found += qwen.host.ask(CountTexts((asked,)), "counting")
            bound = qwen.host.ask(BoundTexts(("image",)), "bounding")
            assert some(bound.max_tokens(asked.measure_context(), {})) >= found[-1]
        for drops in (False, True):
            given = {"chat_template": TEMPLATE, "exclude_tools_when_tool_choice_none": drops}
            qwen.host.ask(OpenModel(str(qwen.folder), engine_args=given), "opening")
            with_tools = ChatRequest(asked.messages, tools)
            none, counted_some = qwen.host.ask(CountTexts((asked, with_tools)), "counting")
            assert (none == counted_some) is drops
    finally:
        forget(qwen.host)
    assert qwen.budget(chat_template=TEMPLATE, tool_call_parser="hermes") == qwen.budget()
    assert found == [1, 2, 4]


@needs_device
def test_the_context_that_fits_is_one_in_which_vllm_answers_all(qwen: Lab, tmp_path: Path) -> None:
    """max_tokens 4096 and 1,500 words do not fit a context of 2,032."""
    requests = example(tmp_path)
    fit = longest(qwen, *corpus(qwen, tmp_path, requests))
    assert fit.fits_answers
    context, needed = smallest_context(fit, qwen.opened.max_model_len), fit.needed_tokens
    assert context - 16 < needed <= context
    contexts = [context, needed, needed - 1, 2032]
    at_context, at_needed, less, old = served(qwen.folder, contexts, requests)
    most = max(length for length, _ in at_needed)
    assert [granted for _, granted in at_context] == [4096] * 4
    assert [granted for _, granted in at_needed] == [4096] * 4
    assert most + 4096 == needed
    # One token less, and the longest is cut short: no smaller context answers all as asked.
    assert min(granted for _, granted in less) == 4095
    assert all("cannot be greater than max_model_len" in refused for refused in old)


@needs_device
def test_vllms_boundary_is_the_boundary(qwen: Lab, tmp_path: Path) -> None:
    """vLLM refuses a length equal to the context."""
    request = {"messages": example(tmp_path)[0]["messages"]}
    needed = longest(qwen, *corpus(qwen, tmp_path, [request]), reserve_tokens=1).needed_tokens
    (taken,), (refused,) = served(qwen.folder, [needed, needed - 1], [request])
    assert taken == [needed - 1, 1]
    assert "plus the number of requested output tokens (at least 1) is longer" in refused


def test_only_requests_that_the_bound_does_not_settle_are_counted(qwen: Lab, tmp_path) -> None:
    texts_alone = [
        {"messages": [{"role": "user", "content": "word " * n}], "max_tokens": 9}
        for n in range(1, 400)
    ]
    found, texts = corpus(qwen, tmp_path, [*texts_alone, *example(tmp_path)[:1]])
    fit = longest(qwen, found, texts)
    assert fit.longest.origin == "requests.jsonl:400"
    assert len(texts.measured) <= 64


def test_a_chat_repeats_the_median_request_of_one_image(qwen: Lab, tmp_path: Path) -> None:
    """Its third prompt, as vLLM's renderer counts it; the tokenizer has a token for each byte."""
    page = example(tmp_path)[0]["messages"][0]["content"][1]

    def asks(words: int, *more: Any) -> dict[str, Any]:
        made = body(page, *more, text="word " * words, max_tokens=7)
        return {**made, "messages": [{"role": "system", "content": "Be brief."}, *made["messages"]]}

    answer = {"role": "assistant", "content": "a" * 7}
    asked = [asks(1), asks(900), asks(3), asks(3, page)]
    grown = [*asks(3)["messages"], answer, {"role": "user", "content": "more " * 30}]
    found, texts = corpus(qwen, tmp_path, [*asked, {"messages": grown}])
    chat = texts.chat(found.prompts, "image", 1024)
    assert (chat.request, chat.assumed) == ("requests.jsonl:3", False)
    system, user = asked[2]["messages"]
    third = ChatRequest([system, user, answer, user, answer, user]).strip_media()
    (counted,) = qwen.host.ask(CountTexts((third,)), "counting")
    assert chat.first_tokens + 2 * chat.turn_tokens == counted
    assert texts.chat(found.prompts, "video", 1024) == ChatText.of_reserve(1024)


characters = st.one_of(
    st.characters(codec="utf-8"),
    st.sampled_from("字한\U0001f9d1\u200d\U0001f680\x00\x07\n\t <>\"'\\&{}\U0001d160\u0958é"),
    st.sampled_from(["<|im_start|>", "<image>", "<s>", "</think>", "\n\n"]),
)
texts = st.lists(characters, max_size=30).map("".join)
turns = st.lists(texts, min_size=1, max_size=9)
tools = st.lists(
    st.fixed_dictionaries(
        {"name": st.just("f"), "description": texts},
        optional={"parameters": st.dictionaries(texts, st.one_of(texts, st.integers()))},
    ).map(lambda function: {"type": "function", "function": function}),
    max_size=3,
)


@pytest.mark.slow
@pytest.mark.parametrize("name", [QWEN, INTERN, LLAVA])
def test_the_bound_is_never_below_what_vllm_counts(lab: Callable[[str], Lab], name: str) -> None:
    model = lab(name)
    kinds: tuple[Modality, ...] = tuple(model.opened.modalities)
    bound = model.host.ask(BoundTexts(kinds), "bounding")
    assert bound.compared

    @settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
    @given(turns, tools, st.integers(0, 3), texts)
    def check(said: list[str], given_tools: list[Any], images: int, system: str) -> None:
        messages: list[dict[str, Any]] = [
            {"role": ("user", "assistant")[place % 2], "content": words}
            for place, words in enumerate(said)
        ]
        if system:
            messages.insert(0, {"role": "system", "content": system})
        messages += body(*[PICTURE] * images, text=said[0])["messages"]
        fields = {"tools": given_tools} if given_tools else {}
        request = ChatRequest(messages, fields).strip_media()
        (tokens,) = model.host.ask(CountTexts((request,)), "counting")
        # The words of a placeholder, or turns that the template refuses.
        if isinstance(tokens, str):
            return
        assert tokens <= some(bound.max_tokens(request.measure_context(), request.items()))

    check()


def test_an_added_token_of_one_letter_leaves_a_bound(lab, host: Any, tmp_path: Path) -> None:
    """Gemma 3's line break is one: every request with a picture was unknown."""
    folder = speaking(lab(GEMMA).folder, tmp_path / "model", None)
    path = folder / "tokenizer.json"
    document = json.loads(path.read_text())
    number = max(document["model"]["vocab"].values()) + len(document["added_tokens"]) + 1
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    breaks = ({"id": number + n, "content": "\n" * n, **plain} for n in (1, 2))
    document["added_tokens"] += breaks
    path.write_text(json.dumps(document))
    model = Lab(host, folder)
    bound = model.host.ask(BoundTexts(("image",)), "bounding")
    words = text_part("a\n\n\nb\n")
    asked = [ChatRequest.of_user([words, *[PICTURE] * n]).strip_media() for n in (0, 1, 2)]
    counted = model.host.ask(CountTexts(tuple(asked)), "counting")
    for request, tokens in zip(asked, counted, strict=True):
        most = some(bound.max_tokens(request.measure_context(), request.items()))
        assert expect(int, tokens) <= most


@pytest.mark.parametrize("name", [QWEN, GEMMA])
def test_orders_of_turns_that_the_template_refuses_have_no_bound(lab, name: str) -> None:
    model = lab(name)
    bound = model.host.ask(BoundTexts(("image",)), "bounding")
    roles = ["user", "user"], ["assistant", "user"], ["system", "user", "assistant", "user"]
    asked = [ChatRequest([{"role": role, "content": "a"} for role in turns]) for turns in roles]
    counted = model.host.ask(CountTexts(tuple(asked)), "counting")
    most = [bound.max_tokens(request.measure_context(), {}) for request in asked]
    assert [isinstance(tokens, str) for tokens in counted] == [name == GEMMA] * 2 + [False]
    assert [tokens is None for tokens in most] == [name == GEMMA] * 2 + [False]
    assert expect(int, counted[2]) <= some(most[2])
