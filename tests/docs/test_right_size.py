"""The page for those who come from vLLM's docs: its figures and vLLM's messages are still so."""

from __future__ import annotations

import ast
import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from .pages import TEXTS
from .refresh import ROOT

PAGE = "docs/right-size.md"
# Where vLLM says what the first table has.
SOURCES = (
    "multimodal/processing/context.py",
    "v1/core/encoder_cache_manager.py",
    "v1/core/kv_cache_utils.py",
    "v1/engine/input_processor.py",
    "v1/worker/utils.py",
)
# torch's own.
NOT_VLLM = {"CUDA out of memory"}

# Names and statuses are no figures.
_NAME = re.compile(r"`[^`]*`|HTTP \d+|\b\w*[A-Za-z][\w.]*(?:-\w[\w.]*)*")
_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")
_LINKED = re.compile(r"\]\(((?:\.\./|example/)[^)#]+)\)")


def cited(section: str) -> Iterator[tuple[str, str]]:
    """Each figure of a section, with the pages that its row or paragraph links to, as one text."""
    for part in re.split(r"\n\n|\n(?=\|)", section):
        sources = [(ROOT / "docs" / name).resolve() for name in _LINKED.findall(part)]
        said = "\n".join(path.read_text("utf-8") for path in sources)
        words = re.sub(r"\]\([^)]*\)", "]", part)
        yield from ((number.rstrip(","), said) for number in _NUMBER.findall(_NAME.sub("", words)))


def test_every_figure_stands_in_the_run_that_it_is_from() -> None:
    section = TEXTS[PAGE].partition("## What it comes to\n")[2].partition("\n## ")[0]
    figures = list(cited(section))
    assert len(figures) >= 20
    stands = r"(?<![\d.,]){}(?![\d]|[.,]\d)"
    lost = [n for n, said in figures if not re.search(stands.format(re.escape(n)), said)]
    assert lost == []


def test_no_figure_stands_elsewhere_on_the_page() -> None:
    """But for what is vLLM's: the limit of a modality that is left out, and none."""
    text = re.sub(r"^```.*?^```$", "", TEXTS[PAGE], flags=re.S | re.M)
    before, _, rest = text.partition("## What it comes to\n")
    figures = [n for part in (before, rest.partition("\n## ")[2]) for n, _ in cited(part)]
    assert set(figures) <= {"999", "0"}


def strings(source: Path) -> Iterator[str]:
    """Every string of a module; what an f-string replaces is left out."""
    for node in ast.walk(ast.parse(source.read_text("utf-8"))):
        match node:
            case ast.JoinedStr(values=parts):
                yield "".join(
                    str(part.value) if isinstance(part, ast.Constant) else "\0" for part in parts
                )
            case ast.Constant(value=str() as text):
                yield text


def test_each_message_is_one_of_vllm() -> None:
    found = importlib.util.find_spec("vllm")
    if found is None or found.origin is None:
        pytest.skip("needs vLLM: make setup")
    package = Path(found.origin).parent
    said = "\n".join(text for name in SOURCES for text in strings(package / name))
    table = TEXTS[PAGE].partition("| vLLM says |")[2].partition("\n\n")[0]
    rows = [line.split(" | ")[0] for line in table.splitlines()[2:]]
    messages = {message for row in rows for message in re.findall(r"`([^`]+)`", row)} - NOT_VLLM
    assert len(messages) >= 9
    assert {message for message in messages if message not in said} == set()
