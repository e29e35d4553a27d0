"""Read the engine's arguments in a Python program, without running it."""

from __future__ import annotations

import ast
import operator
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from mmcalib.configs.commands import Command
from mmcalib.configs.words import Span
from mmcalib.results.engine_yaml import serve_option

_CALLS: Final = ("LLM", "EngineArgs", "AsyncEngineArgs")
_OPERATORS: Final = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
}
# Its default depends on `UsageContext` (vllm/engine/arg_utils.py, 0.32).
_BATCH: Final = "max_num_batched_tokens"


# Nodes that one call's values may take, and the largest number among them.
_MAX_NODES, _MAX_NUMBER = 10_000, 1 << 64


class _Unknown(Exception):  # noqa: N818 - the value, not an error
    """A value that only running the program tells."""


def read_program(text: str) -> list[Command]:
    """Return the calls that start an engine; none for what is no Python."""
    try:
        nodes = list(ast.walk(ast.parse(text)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    imported = {
        alias.asname or alias.name: alias.name
        for node in nodes
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "vllm"
        for alias in node.names
    }
    stored = (node for node in nodes if isinstance(node, ast.Name))
    names = Counter(node.id for node in stored if isinstance(node.ctx, ast.Store))
    names.update(node.arg for node in nodes if isinstance(node, ast.arg))
    values = {
        target.id: node.value
        for node in nodes
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name) and names[target.id] == 1
    }
    calls = []
    for node in nodes:
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            name = imported.get(called, called.rpartition(".")[2])
            if name in _CALLS and (called in imported or called.startswith("vllm.")):
                calls.append(_read_call(node, name, values))
    return sorted(calls, key=lambda call: call.line)


def _read_call(node: ast.Call, name: str, values: Mapping[str, ast.expr]) -> Command:
    arguments, notes = dict[str, Any](), list[str]()
    given = [*zip(("model",), node.args, strict=False)]
    notes += [f"line {one.lineno}: {ast.unparse(one)} is left out" for one in node.args[1:]]
    given += [(one.arg or "", one.value) for one in node.keywords]
    for key, value in given:
        try:
            found = _Evaluation(values).evaluate(value)
            arguments.update({key: found} if key else dict(found))
        except (_Unknown, ArithmeticError, RecursionError, TypeError, ValueError):
            what = key or f"**{ast.unparse(value)}"
            why = f"{ast.unparse(value)} is known only when it runs" if key else "not known whole"
            notes.append(f"line {value.lineno}: {what} is left out: {why}")
    if name == "LLM" and _BATCH not in arguments:
        notes.append(f"line {node.lineno}: {_BATCH} is read as vllm serve's default, not LLM's")
    model = arguments.pop("model", None)
    words = [
        Span(word, line=node.lineno)
        for key, value in arguments.items()
        if value is not None
        for word in serve_option(key, value)
    ]
    return Command(words, notes, node.lineno, model=None if model is None else str(model))


@dataclass(slots=True)
class _Evaluation:
    """Evaluates literals and names that are assigned once."""

    values: Mapping[str, ast.expr]
    nodes_left: int = _MAX_NODES

    def evaluate(self, node: ast.expr) -> Any:
        self.nodes_left -= 1
        if self.nodes_left < 0:
            raise _Unknown
        match node:
            case ast.Constant():
                return node.value
            case ast.Name() if node.id in self.values:
                return self.evaluate(self.values[node.id])
            case ast.List() | ast.Tuple():
                return [self.evaluate(one) for one in node.elts]
            case ast.Dict():
                pairs = dict[Any, Any]()
                for key, value in zip(node.keys, node.values, strict=True):
                    inner = self.evaluate(value)
                    pairs.update(inner if key is None else {self.evaluate(key): inner})
                return pairs
            case ast.Call(func=ast.Name(id="dict"), args=[]):
                return {one.arg: self.evaluate(one.value) for one in node.keywords}
            case ast.UnaryOp(op=ast.USub()):
                return -self.evaluate(node.operand)
            case ast.BinOp() if type(node.op) in _OPERATORS:
                left, right = self.evaluate(node.left), self.evaluate(node.right)
                if all(isinstance(n, int | float) and abs(n) < _MAX_NUMBER for n in (left, right)):
                    return _OPERATORS[type(node.op)](left, right)
        raise _Unknown
