"""Texts counted by a process of their own, by files that a test wrote."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mmcalib.texts import tokenizer
from mmcalib.texts.counting import Counting
from mmcalib.texts.recipe import ChatTemplate, TextRecipe

pytest.importorskip("tokenizers")

TEMPLATE = (
    "{% for m in messages %}{{ m.role }} "
    "{% for part in m.content %}{{ part.text }} {% endfor %}{% endfor %}"
)
ENDLESS = (
    "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}"
    "{% endfor %}{% endfor %}{% endfor %}"
)
FILLING = "{% set big = namespace(x='a' * 999) %}" + "{% set big.x = big.x * 999 %}" * 3


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkpoint whose tokens are words."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit

    made = Tokenizer(WordLevel({"a": 0, "user": 1, "?": 2}, unk_token="?"))
    made.pre_tokenizer = WhitespaceSplit()
    made.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def recipe(folder: Path, template: str = TEMPLATE) -> TextRecipe:
    plain = ChatTemplate(template, "openai")
    return TextRecipe(plain, None, {}, tokenizer.digests(folder), grown={"image": 2}, compared=1)


def says(words: str, **more: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": words, **more}]


def test_words_and_items_are_counted(folder: Path) -> None:
    counting = Counting(str(folder), recipe(folder))
    assert counting.tokens(says("a b c"), {}, {}) == 4
    assert counting.tokens(says("a b c"), {}, {"image": 3}) == 10
    assert counting.tokens(says("a " * 100_000), {}, {}) == 100_001
    assert counting.why == ""


@pytest.mark.parametrize(
    ("messages", "fields", "items"),
    [
        (says("a"), {"chat_template_kwargs": {"x": 1}}, {}),
        (says("a"), {"tools": [{"type": "function", "function": {"name": "f"}}]}, {}),
        (says("a"), {"tools": []}, {}),
        (says("a"), {}, {"video": 1}),
        ([{"role": "user", "content": [{"type": "text", "text": "a", "own": 1}]}], {}, {}),
        ([{"role": "user", "content": None}], {}, {}),
        ([{"role": "developer", "content": "a"}], {}, {}),
        ([{"content": "a"}], {}, {}),
    ],
)
def test_what_is_not_known_to_be_vllms_is_left_to_the_bound(
    folder: Path, messages: Any, fields: Mapping[str, Any], items: Any
) -> None:
    counting = Counting(str(folder), recipe(folder))
    assert counting.tokens(messages, fields, items) is None
    assert counting.tokens(says("a"), {}, {}) == 2


@pytest.mark.parametrize("template", [ENDLESS, FILLING])
def test_a_template_that_never_ends_costs_its_seconds_only(folder: Path, template: str) -> None:
    """A calibration may come from somebody else."""
    counting = Counting(str(folder), recipe(folder, template), patience_s=1.0)
    started = time.monotonic()
    found = [counting.tokens(says("a"), {}, {}) for _ in range(6)]
    assert found == [None] * 6
    assert time.monotonic() - started < 60


def test_after_three_that_never_end_none_is_counted(folder: Path) -> None:
    counting = Counting(str(folder), recipe(folder, ENDLESS), patience_s=0.2)
    assert [counting.tokens(says("a"), {}, {}) for _ in range(4)] == [None] * 4
    assert counting.why == "3 texts were too much for what counts them"


def test_code_in_a_template_is_not_run(folder: Path) -> None:
    touching = "{{ messages.__class__.__mro__[1].__subclasses__() }}"
    counting = Counting(str(folder), recipe(folder, touching))
    assert counting.tokens(says("a"), {}, {}) is None


def test_files_that_changed_are_not_trusted(folder: Path) -> None:
    known = recipe(folder)
    (folder / "chat_template.jinja").write_text("another")
    counting = Counting(str(folder), known)
    assert counting.tokens(says("a"), {}, {}) is None
    assert counting.why.endswith("is not the one that was calibrated with")


def test_a_model_that_is_not_here_is_named(folder: Path, tmp_path: Path) -> None:
    counting = Counting("nobody/has-it", recipe(folder))
    assert counting.tokens(says("a"), {}, {}) is None
    assert counting.why == "nobody/has-it is neither a folder nor in the hub cache"


def test_parts_of_the_tokenizer_are_replaced_as_transformers_does(folder: Path) -> None:
    document = json.loads((folder / "tokenizer.json").read_text())
    document["normalizer"] = {"type": "Replace", "pattern": {"String": "b"}, "content": " "}
    pipeline = tokenizer.differences(folder, json.dumps(document))
    assert pipeline.keys() == {"normalizer"}
    counting = Counting(str(folder), replace(recipe(folder), pipeline=pipeline))
    assert counting.tokens(says("abababa"), {}, {}) == 5


def test_threads_share_it(folder: Path) -> None:
    """The process ends with the thread that began it."""
    counting = Counting(str(folder), recipe(folder))
    found: list[int | None] = []
    for _ in range(3):
        thread = threading.Thread(target=lambda: found.append(counting.tokens(says("a"), {}, {})))
        thread.start()
        thread.join()
    assert found == [2, 2, 2]
    assert counting.why == ""
