"""Read the engine's arguments in a Python program, without running it."""

from __future__ import annotations

import ast
import json
import operator
import re
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from operator import attrgetter
from typing import Any, Final

from mmcalib.configs.commands import Command, Span, Unread, leave_out, mark_unknown
from mmcalib.text import serve_option

_CALLS: Final = ("LLM", "EngineArgs", "AsyncEngineArgs")
# Functions that run a text in a shell, or make words of it as one does.
_RUNNERS: Final = (
    *("system", "popen", "run", "Popen", "call", "check_call", "check_output", "getoutput"),
    *("create_subprocess_shell", "split"),
)
# Its default depends on `UsageContext` (vllm/engine/arg_utils.py, 0.32).
_BATCH: Final = "max_num_batched_tokens"
# vLLM has some 300. Each may name the largest value of the program.
_MOST_ARGUMENTS: Final = 1_000
# Expressions of a program that are visited, and the largest number and exponent.
_MOST_STEPS, _LARGEST, _HIGHEST = 1 << 17, 1 << 63, 64
_OPERATORS: Final = dict(
    zip(
        (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.LShift, ast.Pow),
        attrgetter("add", "sub", "mul", "truediv", "floordiv", "lshift", "pow")(operator),
        strict=True,
    )
)
_UNKNOWN: Final = (ArithmeticError, MemoryError, RecursionError, SyntaxError, TypeError, ValueError)


def read_program(text: str, read_script: Callable[[str, int], list[Command]]) -> list[Command]:
    """Return the calls, lists of words, and scripts (read by the function, with their line) that
    start an engine; none for what is no Python.
    """
    try:
        nodes = list(ast.walk(ast.parse(text)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    imported, names, values = dict[str, str](), Counter[str](), dict[str, ast.expr]()
    for node in nodes:
        match node:
            case ast.ImportFrom() if (node.module or "").split(".")[0] == "vllm":
                imported |= {alias.asname or alias.name: alias.name for alias in node.names}
            case ast.Import():
                modules = [alias.asname for alias in node.names if alias.name == "vllm"]
                imported |= {f"{name}.{call}": call for name in modules for call in _CALLS}
            case ast.Name(ctx=ast.Store()):
                names[node.id] += 1
            case ast.arg():
                names[node.arg] += 1
            case ast.Assign():
                values |= {ast.unparse(target): node.value for target in node.targets}
    once = {name: value for name, value in values.items() if names[name] == 1}
    inlining = _Inlining(once, nodes)
    called = [(ast.unparse(node.func), node) for node in nodes if isinstance(node, ast.Call)]
    changed = defaultdict[int, dict[str, int]](dict)
    for target, value in values.items():
        owner, _, argument = target.rpartition(".")
        changed[id(values.get(owner))][argument] = value.lineno
    for name, node in called:
        if name in ("replace", "dataclasses.replace") and node.args:
            owner = ast.unparse(node.args[0])
            changed[id(values.get(owner))] |= {
                one.arg or "**": node.lineno for one in node.keywords
            }
    calls = [
        _read_call(node, imported.get(name, name.rpartition(".")[2]), inlining, changed[id(node)])
        for name, node in called
        if imported.get(name) in _CALLS or re.fullmatch(rf"vllm\.(.+\.)?({'|'.join(_CALLS)})", name)
    ]
    calls += inlining.read_lists(nodes)
    for name, node in called:
        own = node.func.value if isinstance(node.func, ast.Attribute) else None
        is_own = isinstance(own, ast.Constant | ast.JoinedStr) or not node.args
        script = own if is_own else node.args[0]
        if name.rpartition(".")[2] in _RUNNERS and script is not None:
            calls += read_script(inlining.read_text(script), node.lineno)
    return sorted(calls, key=lambda call: call.line)


def evaluate_arithmetic(text: str) -> int | None:
    """Return the value of a shell's arithmetic on numbers; None for anything else."""
    try:
        value = ast.literal_eval(_Inlining({}, ()).visit(ast.parse(text.strip(), mode="eval").body))
    except _UNKNOWN:
        return None
    return value if type(value) is int else None


def _read_call(node: ast.Call, name: str, inlining: _Inlining, later: dict[str, int]) -> Command:
    if len(node.keywords) > _MOST_ARGUMENTS:
        raise OverflowError
    words, notes, model = dict[str, list[str]](), list[Unread](), None
    inlining.line = node.lineno
    given = [("model" if at == 0 else "", one) for at, one in enumerate(node.args)]
    for key, value in (*given, *((one.arg or "", one.value) for one in node.keywords)):
        for argument, own in inlining.find_arguments(key, value):
            try:
                found: Any = ast.literal_eval(own)
                words[argument] = [] if found is None else serve_option(argument, found)
                model = str(found) if argument == "model" else model
            except _UNKNOWN:
                words.pop(argument, None)
                why = f"{ast.unparse(own)} is known only when it runs"
                notes.append(leave_out(value.lineno, argument, why))
    for argument, line in later.items():
        words.pop(argument, None)
        notes.append(leave_out(line, argument, "it is set again here"))
    words.pop("model", None)
    if name == "LLM" and _BATCH not in words:
        notes.append(Unread(node.lineno, f"{_BATCH} is read as vllm serve's default, not LLM's"))
    spans = [Span(word, line=node.lineno) for option in words.values() for word in option]
    return Command(spans, notes, node.lineno, model=model)


class _Inlining(ast.NodeTransformer):
    """Puts values of names that are assigned once in their places, and computes constants.

    A statement that changes a dictionary adds to it if it is certain to run before this `line`.
    """

    def __init__(self, values: dict[str, ast.expr], nodes: Sequence[ast.AST]) -> None:
        self.values, self.left, self.line = values, _MOST_STEPS, 0
        self.changes = defaultdict[str, list[tuple[int, bool, ast.Dict]]](list)
        # Of each value of a name, the statements that add words to it, and if they certainly run.
        self.added = defaultdict[ast.AST, list[tuple[bool, ast.stmt, list[ast.expr]]]](list)
        assigned = defaultdict[str, dict[Any, Any]](dict)
        found = list[tuple[str, Any, ast.stmt, list[ast.expr], ast.Dict | None]]()
        changers = {
            one.name
            for one in getattr(next(iter(nodes), None), "body", ())
            if _changes_parameter(one)
        }
        for node in nodes:
            for block in (getattr(node, part, ()) for part in ("body", "orelse", "finalbody")):
                for one in block if isinstance(block, list) else ():
                    match _read_change(one, changers), one:
                        case (name, words, more), _:
                            own = values.get(name)
                            name = own.id if isinstance(own, ast.Name) else name
                            found.append((name, block, one, words, more))
                        case None, ast.Assign([ast.Name(id=name)], value) | ast.AnnAssign(
                            ast.Name(id=name), _, ast.expr() as value
                        ):
                            assigned[name][one.lineno, one.col_offset] = block, value
        before = {name: sorted(lines) for name, lines in assigned.items()}
        for name, block, one, words, more in found:
            at = bisect_left(before.get(name, []), (one.lineno, one.col_offset))
            home, owner = assigned[name][before[name][at - 1]] if at else (None, None)
            if more is not None:
                self.changes[name].append((one.lineno, block is home, more))
            if owner is not None:
                self.added[owner].append((more is None and block is home, one, words))

    def read_lists(self, nodes: Iterable[ast.AST]) -> list[Command]:
        """Return the servers that lists of words start, each with what is certain to be added; a
        part of another list counts there.
        """
        joined = [node for node in nodes if isinstance(node, ast.List | ast.BinOp)]
        # First what may have parts.
        joined.sort(key=lambda o: isinstance(o, ast.List) and ast.Starred not in map(type, o.elts))
        servers, read = list[Command](), set[int]()
        for node in joined:
            unread = list[ast.stmt]()
            with suppress(RecursionError):
                parts = [] if id(node) in read else self._words_of(node, unread, read)
                words = [Span(self.read_text(one), line=one.lineno) for one in parts]
                notes = [Unread(one.lineno, f"{ast.unparse(one)} is not read") for one in unread]
                inner = (part for one in unread for part in ast.walk(one))
                named = {part.value for part in inner if isinstance(part, ast.Constant)}
                for at, word in enumerate(words):
                    # A change that is not read may be of the option that it names.
                    if word.text[:2] == "--" and word.text in named:
                        words[at] = replace(word, text=word.text + mark_unknown("it", "is changed"))
                servers += Command(words, notes, node.lineno).find_server()
        return servers

    def _words_of(self, node: ast.expr, unread: list[ast.stmt], read: set[int]) -> list[ast.expr]:
        self.left -= 1
        if self.left < 0:
            raise RecursionError
        match node:
            case ast.Starred(value):
                return self._words_of(value, unread, read)
            case ast.Name(id=name) if isinstance(self.values.get(name), ast.List | ast.BinOp):
                return self._words_of(self.values[name], unread, read)
            case ast.BinOp(left, ast.Add(), right):
                parts: list[ast.expr] = [ast.Starred(left), ast.Starred(right)]
            case ast.List(elements):
                parts = [*elements]
            case _:
                return [node]
        read.add(id(node))
        for is_certain, change, more in self.added[node]:
            parts += more if is_certain else ()
            if not is_certain:
                unread.append(change)
        words = list[ast.expr]()
        for part in parts:
            words += self._words_of(part, unread, read) if isinstance(part, ast.Starred) else [part]
        return words

    def read_text(self, node: ast.expr) -> str:
        """Return the text that a value makes, with marks for what is unknown."""
        match node:
            case ast.JoinedStr(parts):
                return "".join(map(self.read_text, parts))
            case ast.FormattedValue(one, -1, None) | ast.Call(ast.Name("str"), [one]):
                return self.read_text(one)
            case ast.Name(id=name) if isinstance(self.values.get(name), ast.JoinedStr):
                return self.read_text(self.values[name])
            case ast.Call(ast.Attribute(ast.Name("json"), "dumps"), [own, *_]):
                write: Callable[[Any], str] = json.dumps
            case own:
                write = str
        try:
            return write(ast.literal_eval(self.visit(own)))
        except _UNKNOWN:
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
                return self.read_text(node.left) + self.read_text(node.right)
            return mark_unknown(ast.unparse(node), "is known only when it runs")

    def find_arguments(self, key: str, node: ast.expr) -> list[tuple[str, ast.expr]]:
        """Return the argument and its value, or those of a dictionary for an empty key."""
        try:
            value = self.visit(node)
            if not key and isinstance(value, ast.Dict):
                names = [ast.literal_eval(one) if one else "**" for one in value.keys]
                return [*zip(names, value.values, strict=True)]
        except _UNKNOWN:
            value = ast.Name(ast.unparse(node))
        return [(key or "**", value)]

    def visit(self, node: ast.AST) -> Any:
        self.left -= 1
        if self.left < 0:
            raise RecursionError
        return super().visit(node)

    def visit_Name(self, node: ast.Name) -> Any:
        own = self.values.get(node.id)
        changes = sorted(self.changes[node.id], key=lambda change: change[0])
        if own is None or not changes:
            return node if own is None else self.visit(own)
        for line, is_certain, more in changes:
            if not (is_certain and line < self.line):
                other = ast.Constant(...)
                more = ast.Dict(more.keys, [ast.IfExp(other, one, other) for one in more.values])
            own = ast.Dict([None, None], [own, more])
        return self.visit(own)

    def visit_Dict(self, node: ast.Dict) -> ast.Dict:
        pairs = list[tuple[ast.expr | None, ast.expr]]()
        for key, value in zip(node.keys, map(self.visit, node.values), strict=True):
            is_merged = key is None and isinstance(value, ast.Dict)
            pairs += zip(value.keys, value.values, strict=True) if is_merged else [(key, value)]
        return ast.Dict([key for key, _ in pairs], [value for _, value in pairs])

    def visit_Call(self, node: ast.Call) -> Any:
        name = ast.unparse(node.func)
        if name in ("os.environ.get", "os.getenv") and node.args[1:]:
            # As a shell reads ${X:-default}.
            return self.visit(node.args[1])
        return self.visit_Dict(_updated(node)) if name == "dict" else node

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        match self.visit(node.left), _OPERATORS.get(type(node.op)), self.visit(node.right):
            case ast.Constant(int() | float() as left), apply, ast.Constant(
                int() | float() as right
            ) if apply:
                is_power = isinstance(node.op, ast.Pow | ast.LShift)
                if not is_power or right in range(_HIGHEST + 1):
                    value = apply(left, right)
                    return ast.Constant(value) if abs(value) <= _LARGEST else node
        return node


def _read_change(
    one: ast.stmt, changers: Collection[str]
) -> tuple[str, list[ast.expr], ast.Dict | None] | None:
    """Return the list or dictionary that a statement changes, and what it adds to it; what is
    unknown has the statement's text. None for others; the `changers` are functions that may change
    what they get.
    """
    match one:
        case ast.Assign([ast.Name(id=name)], ast.BinOp(ast.Name(id=same), ast.Add(), own)) if (
            name == same
        ):
            return name, [ast.Starred(own)], None
        case ast.Expr(ast.Call(ast.Attribute(ast.Name(id=name), "append"), [own])):
            return name, [own], None
        case ast.Expr(ast.Call(ast.Attribute(ast.Name(id=name), "extend"), [own])) | ast.AugAssign(
            ast.Name(id=name), ast.Add(), own
        ):
            return name, [ast.Starred(own)], None
        case ast.Assign([ast.Subscript(ast.Name(id=name), key)], value):
            return name, [], ast.Dict([key], [value])
        case ast.Expr(ast.Call(ast.Attribute(ast.Name(id=name), "update")) as call):
            return name, [], _updated(call)
        case (
            ast.Expr(ast.Call(ast.Attribute(ast.Name(id=name), "pop"), [key, *_]))
            | ast.AugAssign(ast.Subscript(ast.Name(id=name), key))
            | ast.Delete([ast.Subscript(ast.Name(id=name), key)])
        ):
            return name, [], ast.Dict([key], [ast.Name(ast.unparse(one))])
        case ast.Expr(ast.Call(ast.Attribute(ast.Name(id=name)))):
            return name, [], ast.Dict([None], [ast.Name(ast.unparse(one))])
        case ast.Expr(ast.Call(ast.Name(id=function), [ast.Name(id=name), *_])) if (
            function in changers
        ):
            return name, [], ast.Dict([None], [ast.Name(ast.unparse(one))])
    return None


def _changes_parameter(function: ast.AST) -> bool:
    if not isinstance(function, ast.FunctionDef):
        return False
    own = {one.arg for one in function.args.args}
    parts = (one for one in ast.walk(function) if isinstance(one, ast.stmt))
    return any(change[0] in own for change in (_read_change(one, ()) for one in parts) if change)


def _updated(call: ast.Call) -> ast.Dict:
    """Return the dictionary of a call of `dict` or `update`."""
    words = [*map(partial(ast.keyword, None), call.args), *call.keywords]
    keys = [ast.Constant(word.arg) if word.arg else None for word in words]
    return ast.Dict([*keys], [word.value for word in words])
