"""Chat templates, rendered as transformers does it.

Facts of 5.19: transformers/utils/chat_template_utils.py.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import jinja2
from jinja2 import meta, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from mmcalib.texts.recipe import ChatTemplate, Uncounted

# What the text would be tomorrow nobody knows.
_CLOCK = "strftime_now"
_DEVELOPER = ('"developer"', "'developer'")


class TemplateRenderer:
    """One template, compiled. Raises `Uncounted` where that is not possible."""

    def __init__(self, template: ChatTemplate, special: Mapping[str, str]) -> None:
        if _CLOCK in template.text:
            raise Uncounted("its chat template reads the clock")
        self.content = template.content
        self._text, self._special = template.text, dict(special)
        self._environment = _environment()
        try:
            self._compiled = self._environment.from_string(template.text)
        except jinja2.TemplateError as error:
            raise Uncounted(f"its chat template: {error}") from error

    @cached_property
    def variables(self) -> frozenset[str]:
        """What the template reads and does not set."""
        parsed = self._environment.parse(self._text)
        return frozenset(meta.find_undeclared_variables(parsed))

    def prompt(
        self,
        turns: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        more: Mapping[str, Any],
    ) -> str:
        """The prompt up to where the answer begins. Raises `Uncounted` for turns that the template
        refuses, or that vLLM rewrites for it.
        """
        if any(t["role"] == "developer" for t in turns) and not self._knows_developers:
            raise Uncounted("a developer's turn, which vLLM makes a system's for this template")
        given = {**self._special, **more, "add_generation_prompt": True}
        try:
            return self._compiled.render(messages=turns, tools=tools, documents=None, **given)
        except Exception as error:
            raise Uncounted(f"the chat template refuses it: {error}") from error

    @property
    def _knows_developers(self) -> bool:
        return any(word in self._text for word in _DEVELOPER)


class _Generation(Extension):
    """A block that marks the assistant's words; it writes what is in it."""

    tags = {"generation"}  # noqa: RUF012 - as Jinja declares it

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _refuse
    return environment


def _refuse(message: str) -> None:
    raise jinja2.TemplateError(message)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Nothing is escaped for HTML, unlike by Jinja's own."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
