"""Texts counted by a process of their own, by files that a test wrote."""

import copy
import json
import multiprocessing
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mmcalib.admission.admits import TextCounter
from mmcalib.corpus.chat import ChatRequest, url_part
from mmcalib.domain.items import TextCounting
from tests.builders import some

pytest.importorskip("transformers")

TEMPLATE = (
    "{% for m in messages %}{{ m.role }} "
    "{% for part in m.content %}{{ part.text }} {% endfor %}{% endfor %}"
)
ENDLESS = (
    "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}"
    "{% endfor %}{% endfor %}{% endfor %}"
)
FILLING = "{% set big = namespace(x='a' * 999) %}" + "{% set big.x = big.x * 999 %}" * 3
HOW = TextCounting({"image": 2}, compared=1)


def folder_of(folder: Path, template: str = TEMPLATE) -> str:
    """A checkpoint whose tokens are words."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit

    made = Tokenizer(WordLevel({"a": 0, "user": 1, "?": 2}, unk_token="?"))
    made.pre_tokenizer = WhitespaceSplit()
    made.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": template}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return str(folder)


def says(content: Any, fields: dict[str, Any] | None = None, **more: Any) -> ChatRequest:
    return ChatRequest([{"role": "user", "content": content, **more}], fields or {})


def test_words_and_items_are_counted(tmp_path: Path) -> None:
    counting = TextCounter(folder_of(tmp_path), HOW, "openai")
    assert counting.tokens(says("a b c")) == 4
    assert counting.tokens(says(["a b c", *[url_part("image_url", "x")] * 3])) == 10
    assert counting.tokens(says("a " * 100_000)) == 100_001
    assert counting.why == ""


def test_a_fork_or_a_copy_counts_by_a_process_of_its_own(tmp_path: Path) -> None:
    """Workers of a pool once took each other's answers from the pipe that they had inherited."""
    counting = TextCounter(folder_of(tmp_path), HOW, "openai")
    assert counting.tokens(says("a")) == 2
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()

    def count(words: int) -> None:
        answers.put((words, {counting.tokens(says("a " * words)) for _ in range(50)}))

    children = [context.Process(target=count, args=(words,)) for words in (10, 20, 30)]
    for child in children:
        child.start()
    assert dict(answers.get() for _ in children) == {10: {11}, 20: {21}, 30: {31}}
    for child in children:
        child.join()
    assert counting.tokens(says("a a")) == copy.deepcopy(counting).tokens(says("a a")) == 3


@pytest.mark.parametrize(
    "asked",
    [
        *(says("a", {"chat_template_kwargs": {"x": 1}}), says("a", name="n")),
        says("a", {"tools": [{"type": "function", "function": {"name": "f"}}]}),
        *(says(["a", url_part("video_url", "x")]), says("a", role="developer")),
        ChatRequest([{"content": "a"}]),
    ],
)
def test_what_is_not_known_to_be_vllms_is_left_to_the_bound(tmp_path: Path, asked) -> None:
    counting = TextCounter(folder_of(tmp_path), HOW, "openai")
    assert counting.tokens(asked) is None
    assert counting.tokens(says("a")) == 2


GIVEN = (
    "{% for tool in tools or [] %}{{ tool | tojson }} {% endfor %}"
    "{% for m in messages %}a {{ (m.tool_calls or []) | tojson }} {% endfor %}"
    "{% if add_generation_prompt %}a {% endif %}{% if enable_thinking %}a a a {% endif %}"
    "{% if continue_final_message %}a{% endif %}"
)
CALL = {"name": "f", "arguments": '{"b": 1}'}
TOOL = {"type": "function", "function": {"name": "f", "strict": True, "own": "x"}}


@pytest.mark.parametrize(
    ("fields", "tokens"),
    [
        *(({}, 3), ({"add_generation_prompt": False}, 2)),
        *(({"reasoning_effort": "low"}, 6), ({"reasoning_effort": "none"}, 3)),
        ({"reasoning_effort": "low", "chat_template_kwargs": {"enable_thinking": False}}, 3),
        # {"type": "function", "function": {"name": "f", "description": null, "parameters": null,
        # "strict": true}}
        ({"tools": [TOOL], "tool_choice": "none"}, 14),
        *(({"tools": [{**TOOL, "defer_loading": True}]}, None), ({"documents": [{}]}, 3)),
        *(({"add_generation_prompt": one}, n) for one, n in (("no", 2), (0, 2), (7, None))),
        *(({"truncate_prompt_tokens": one}, n) for one, n in ((5, 3), (0, None))),
        ({"chat_template_kwargs": {"tokenize": True}}, None),
    ],
)
def test_what_a_template_gets_is_counted(tmp_path: Path, fields, tokens: int | None) -> None:
    """Each of these was left to the bound, and nothing bounds most of them."""
    counting = TextCounter(folder_of(tmp_path, GIVEN), replace(HOW, fields=True), "openai")
    assert counting.tokens(says("b", fields)) == tokens


@pytest.mark.parametrize(
    ("part", "tokens"),
    [
        *(({"type": "text", "text": 7}, 3), ({"type": "output_text", "text": ["a", "b"]}, 4)),
        *(({"type": "input_text"}, 3), ({"type": "refusal", "refusal": None}, 2)),
        *(({"type": "thinking", "thinking": 7}, 3), ({"type": "text", "own": "a"}, 2)),
    ],
)
def test_a_template_prints_what_is_no_text(tmp_path: Path, part: Any, tokens: int | None) -> None:
    """It prints 7, ['a', 'b'] and None."""
    counting = TextCounter(folder_of(tmp_path), replace(HOW, fields=True), "openai")
    assert counting.tokens(says(["a", part])) == tokens


def test_what_is_no_text_is_not_joined(tmp_path: Path) -> None:
    answer = {"role": "tool", "tool_call_id": "1", "content": [{"type": "text", "text": 7}]}
    counting = TextCounter(folder_of(tmp_path), replace(HOW, fields=True), "openai")
    assert "not a string" in str(counting.tokens(ChatRequest([answer])))


def test_calls_have_their_arguments_as_objects(tmp_path: Path) -> None:
    counting = TextCounter(folder_of(tmp_path, GIVEN), replace(HOW, fields=True), "openai")
    call = {"id": "1", "type": "function", "function": CALL}
    turns = [{"role": "assistant", "content": None, "tool_calls": [call]}]
    # a [{"id": "1", "function": {"arguments": {"b": 1}, "name": "f"}, "type": "function"}] a
    assert counting.tokens(ChatRequest(turns)) == 12
    cut = {**call, "function": {**CALL, "arguments": '{"b": '}}
    assert counting.tokens(ChatRequest([{**turns[0], "tool_calls": [cut]}])) == 11
    assert counting.tokens(ChatRequest([{**turns[0], "tool_calls": [{"id": "1"}]}])) is None


def test_a_template_of_texts_gets_texts_and_marks_for_items(tmp_path: Path) -> None:
    template = "{% for m in messages %}{{ m.content }} {% endfor %}"
    how = replace(HOW, marks={"image": "<image>"}, fields=True)
    counting = TextCounter(folder_of(tmp_path, template), how, "string")
    words = {"type": "text", "text": "a b"}
    assert counting.tokens(says([words, "c", {"type": "input_text", "text": []}])) == 3
    assert "not a string" in str(counting.tokens(says([words, {"type": "text", "text": 7}])))
    image = url_part("image_url", "x")
    assert counting.tokens(says(["a", "b", image, image])) == 8
    assert counting.tokens(says(["a <image>", image])) == 4
    assert "more <image>" in str(counting.tokens(says(["<image> <image>", image])))


def test_a_processor_s_template_goes_before_the_tokenizer_s(tmp_path: Path) -> None:
    how = replace(HOW, processor="{{ messages[0].content[0].text }} a a", fields=True)
    counting = TextCounter(folder_of(tmp_path), how, "openai")
    assert counting.tokens(says("a")) == 3
    assert counting.tokens(says("a", {"tools": [TOOL], "tool_choice": "none"})) == 2


@pytest.mark.parametrize(("template", "patience_s"), [(ENDLESS, 1.0), (FILLING, 30.0)])
def test_a_template_that_never_ends_costs_its_seconds_only(tmp_path, template, patience_s) -> None:
    counting = TextCounter(folder_of(tmp_path, template), HOW, "openai", patience_s=patience_s)
    started = time.monotonic()
    assert [counting.tokens(says("a")) for _ in range(4)] == [None] * 4
    assert time.monotonic() - started < 60


def test_code_in_a_template_is_not_run(tmp_path: Path) -> None:
    touching = "{{ messages.__class__.__mro__[1].__subclasses__() }}"
    counting = TextCounter(folder_of(tmp_path, touching), HOW, "openai")
    assert isinstance(counting.tokens(says("a")), str)


def test_a_template_that_refuses_says_why(tmp_path: Path) -> None:
    template = "{% if messages[0].content[0].text == 'b' %}{{ raise_exception('no b') }}{% endif %}"
    counting = TextCounter(folder_of(tmp_path, template), HOW, "openai")
    assert counting.tokens(says("b"), tokenise=False) == "the chat template rejects it: no b"
    assert counting.tokens(says("a"), tokenise=False) is None


STRICT = (
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('no turn') }}{% endif %}{% for p in m.content %}"
    "{{ '<image>' if p.type == 'image' and m.role == 'user' else p.text }} {% endfor %}{% endfor %}"
)


def test_a_template_is_rendered_where_nothing_is_counted(tmp_path: Path) -> None:
    """Gemma 3's refusals passed because no text with an image was counted."""
    how = replace(HOW, around={}, fields=True, written={"image": "<image>"})
    counting = TextCounter(folder_of(tmp_path, STRICT), how, "openai")
    image, answer = url_part("image_url", "x"), {"role": "assistant", "content": ["b"]}
    user, twice = says(["a", image]).messages[0], "the chat template rejects it: no turn"
    drawn = {"role": "assistant", "content": [image]}
    for turns, found in (
        *(([user], None), ([user, user], twice), ([{**user, "name": "n"}] * 2, twice)),
        *(([user, answer, user], None), ([user, {**answer, "reasoning": "c"}], None)),
        ([user, drawn, user], "the chat template drops the image in the assistant message"),
    ):
        assert counting.tokens(ChatRequest(turns)) == found
    odd = {**answer, "tool_calls": [{"id": "1"}]}
    assert str(counting.tokens(ChatRequest([user, odd]))).endswith("is not modelled")


def test_a_model_that_is_not_here_is_named() -> None:
    counting = TextCounter("nobody/has-it", HOW, "openai")
    assert counting.tokens(says("a")) is None
    assert counting.why.startswith("nobody/has-it: ")


def test_threads_share_it(tmp_path: Path) -> None:
    """A server that starts a thread for each request once started a process for each, too."""
    counting = TextCounter(folder_of(tmp_path), HOW, "openai")
    found = []

    def count() -> None:
        tokens = counting.tokens(says("a"))
        found.append((tokens, some(counting._worker).pid))

    for _ in range(3):
        thread = threading.Thread(target=count)
        thread.start()
        thread.join()
    assert found == [(2, found[0][1])] * 3


def test_the_server_s_template_and_its_defaults_count(tmp_path: Path) -> None:
    template = "{{ lead }} {% for m in messages %}{{ m.content[0].text }}{% endfor %}"
    counting = TextCounting(template=template, kwargs={"lead": "a a a"})
    assert TextCounter(folder_of(tmp_path), counting, "openai").tokens(says("a b")) == 5
