"""Read the engine's arguments in a Python program, without running it."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from mmcalib.configs.commands import Command, Span
from mmcalib.text import serve_option

_CALLS: Final = ("LLM", "EngineArgs", "AsyncEngineArgs")
# Its default depends on `UsageContext` (vllm/engine/arg_utils.py, 0.32).
_BATCH: Final = "max_num_batched_tokens"
# vLLM has some 300. Each may name the largest value of the program.
_MOST_ARGUMENTS: Final = 1_000


def read_program(text: str) -> list[Command]:
    """Return the calls that start an engine; none for what is no Python."""
    try:
        nodes = list(ast.walk(ast.parse(text)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    imported, names, values = dict[str, str](), Counter[str](), dict[str, ast.expr]()
    for node in nodes:
        match node:
            case ast.ImportFrom() if (node.module or "").split(".")[0] == "vllm":
                imported |= {alias.asname or alias.name: alias.name for alias in node.names}
            case ast.Name(ctx=ast.Store()):
                names[node.id] += 1
            case ast.arg():
                names[node.arg] += 1
            case ast.Assign():
                values |= {ast.unparse(target): node.value for target in node.targets}
    once = {name: value for name, value in values.items() if names[name] == 1}
    called = [(ast.unparse(node.func), node) for node in nodes if isinstance(node, ast.Call)]
    calls = [
        _read_call(node, imported.get(name, name.rpartition(".")[2]), once)
        for name, node in called
        if imported.get(name) in _CALLS or re.fullmatch(rf"vllm\.(.+\.)?({'|'.join(_CALLS)})", name)
    ]
    return sorted(calls, key=lambda call: call.line)


def _read_call(node: ast.Call, name: str, values: Mapping[str, ast.expr]) -> Command:
    if len(node.keywords) > _MOST_ARGUMENTS:
        raise OverflowError
    words, notes, model = dict[str, list[str]](), list[str](), None
    given = [("model" if at == 0 else "", one) for at, one in enumerate(node.args)]
    for key, value in (*given, *((one.arg or "", one.value) for one in node.keywords)):
        written = ast.unparse(value)
        try:
            found: Any = ast.literal_eval(_Inlining(values).visit(value))
            for argument, own in ({key: found} if key else dict(found)).items():
                words[argument] = [] if own is None else serve_option(argument, own)
                model = str(own) if argument == "model" else model
        except (RecursionError, TypeError, ValueError):
            what = f"{key or '**'} is left out: {written} is known only when it runs"
            notes.append(f"line {value.lineno}: {what}")
    words.pop("model", None)
    if name == "LLM" and _BATCH not in words:
        notes.append(f"line {node.lineno}: {_BATCH} is read as vllm serve's default, not LLM's")
    spans = [Span(word, line=node.lineno) for option in words.values() for word in option]
    return Command(spans, notes, node.lineno, model=model)


class _Inlining(ast.NodeTransformer):
    """Puts the value of each name that is assigned once in its place."""

    def __init__(self, values: Mapping[str, ast.expr]) -> None:
        self.values = values

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return self.values.get(node.id, node)
