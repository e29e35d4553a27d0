"""Read a shell script by its syntax tree: the words and environment of every command.

Nothing runs. What only running it would tell is marked in the words, with the reason.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import Final

import tree_sitter_bash
from tree_sitter import Language, Node, Parser

from mmcalib.configs.words import Span, has_unknown, mark_doubt, mark_unknown, without_marks

_BASH: Final = Language(tree_sitter_bash.language())
# Statements that hold statements which all run, in order.
_IN_ORDER: Final = (
    *("program", "pipeline", "compound_statement", "subshell", "do_group", "negated_command"),
    *("variable_assignments", "ERROR"),
)
_CLAUSES: Final = ("elif_clause", "else_clause", "case_item")
_EXPANSIONS: Final = ("simple_expansion", "expansion", "command_substitution")
_EXPANDED: Final = (*_EXPANSIONS, "arithmetic_expansion", "process_substitution")
# They show their words and run none of them.
_TALKERS: Final = ("echo", "printf", "grep", "pgrep", "pkill")
_ASSIGNMENT: Final = re.compile(r"([A-Za-z_]\w*)=(.*)", re.S)
# Functions that call each other, and commands inside quotes inside quotes.
_MAX_DEPTH: Final = 8
# Commands run and characters expanded, so that no script grows when it is read.
_MAX_STEPS: Final = 1 << 21


@dataclass(frozen=True, slots=True)
class Argv:
    """The words of one command, the line of it, and the variables that it is given."""

    words: tuple[Span, ...]
    line: int
    environment: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Script:
    """Every command of a script. `broken_line` is the first that is no shell."""

    commands: tuple[Argv, ...]
    broken_line: int | None = None


def read_script(
    text: str,
    environment: Mapping[str, str] | None = None,
    *,
    offset: int | None = 0,
    line: int = 1,
) -> Script:
    """Read a script that begins at this `offset` (None: nowhere) and `line` of the file.

    Raises OverflowError and RecursionError for one that is nested or grows too much.
    """
    own = {name: _Value(value) for name, value in (environment or {}).items()}
    shell = _Shell(text.encode(errors="replace"), offset, line, own, set(own))
    root = Parser(_BASH).parse(shell.source).root_node
    shell.run(root)
    broken = next(_broken(root), None)
    return Script(tuple(shell.found), None if broken is None else broken + line)


def _broken(node: Node) -> Iterator[int]:
    if node.is_error or node.is_missing:
        yield node.start_point[0]
    elif node.has_error:
        for child in node.children:
            yield from _broken(child)


@dataclass(frozen=True, slots=True)
class _Value:
    """The value of a variable, a list for an array, and the line that sets it."""

    value: str | list[str]
    line: int = field(default=0, compare=False)

    @property
    def is_unknown(self) -> bool:
        return has_unknown("".join(self.value))

    def with_doubt(self, reason: str) -> _Value:
        more = mark_doubt(reason)
        own = self.value
        return _Value([*own, more] if isinstance(own, list) else own + more, self.line)


@dataclass(slots=True)
class _Shell:
    source: bytes
    offset: int | None
    line: int
    variables: dict[str, _Value]
    exported: set[str]
    # None in a script that nobody has called yet.
    positional: list[str] | None = None
    functions: dict[str, Node] = field(default_factory=dict)
    found: list[Argv] = field(default_factory=list)
    exports_all: bool = False
    depth: int = 0
    # What may still be expanded, of this script and those inside it.
    left: list[int] = field(default_factory=lambda: [_MAX_STEPS])

    def run(self, node: Node) -> None:
        self._spend(100)
        match node.type:
            case kind if kind in _IN_ORDER:
                self._run_all(node.named_children)
            case "command" | "redirected_statement":
                self._run_command(node)
            case "variable_assignment":
                self._set(*self._evaluate(node), node)
            case "declaration_command":
                self._declare(node)
            case "function_definition":
                self.functions[self._source(node.named_children[0])] = node.named_children[-1]
            case "unset_command":
                for child in node.named_children:
                    self.variables.pop(self._source(child), None)
            case "list":
                left, right = node.named_children[0], node.named_children[-1]
                self.run(left)
                is_test = re.search(r"(?m)^\s*(\[|test )", self._source(left)) is not None
                if any(child.type == "||" for child in node.children) or is_test:
                    self._run_branches([[right]], is_total=False)
                else:
                    self.run(right)
            case "if_statement" | "case_statement" | "while_statement":
                children = node.named_children
                clauses = [child for child in children if child.type in _CLAUSES]
                bodies = [clause.named_children for clause in clauses]
                bodies.insert(0, [child for child in children if child not in clauses])
                last = clauses[-1] if clauses else node
                is_total = last.type == "else_clause" or self._source(last)[:2] == "*)"
                self._run_branches(bodies[node.type == "case_statement" :], is_total=is_total)
            case "for_statement" | "c_style_for_statement":
                self._run_loop(node)

    def _spend(self, steps: int) -> None:
        self.left[0] -= steps
        if self.left[0] < 0:
            raise OverflowError

    def _run_all(self, nodes: Iterable[Node]) -> None:
        for node in nodes:
            self.run(node)

    def _run_loop(self, node: Node) -> None:
        name, *values, body = node.named_children
        if node.type == "for_statement":
            words = [word for value in values for word in self._fields(value)]
            some = mark_unknown(f"${self._source(name)}", "has several values in a loop")
            self._set(self._source(name), words[0] if len(words) == 1 else some, node)
        self._run_branches([[body]], is_total=False)

    def _run_branches(self, bodies: Sequence[Sequence[Node]], *, is_total: bool) -> None:
        """Run each body by itself, then doubt or forget the variables in which they differ."""
        before, after = self.variables, list[dict[str, _Value]]()
        for body in bodies:
            self._spend(len(before))
            self.variables = dict(before)
            self._run_all(body)
            after.append(self.variables)
        self.variables = dict(before)
        for name in {name: None for variables in after for name in variables}:
            old = before.get(name)
            new = [one[name] for one in after if name in one and one[name] != old]
            if old is None and not is_total:
                # Options that a script takes itself: without them, its own defaults hold.
                new = [one for one in new if not one.is_unknown]
            if not new:
                continue
            lines = " and ".join(map(str, sorted({one.line for one in new})))
            is_set_in_all = is_total and len(new) == len(bodies)
            is_one = all(one == new[0] for one in new)
            if is_set_in_all and is_one:
                self.variables[name] = new[0]
            elif old is not None and not is_set_in_all:
                doubt = f"line {lines}: ${name} is changed in a branch, and read without it"
                self.variables[name] = old.with_doubt(doubt)
            elif is_one:
                doubt = f"line {lines}: ${name} is set in a branch, and read so"
                self.variables[name] = new[0].with_doubt(doubt)
            else:
                several = mark_unknown(f"${name}", f"has other values on lines {lines}")
                self.variables[name] = _Value(several, new[0].line)

    def _evaluate(self, node: Node) -> tuple[str, str | list[str]]:
        """Return the name and new value of an assignment."""
        target, *values = node.named_children
        name = self._source(target)
        if target.type == "subscript":
            name = self._source(target.named_children[0])
            return name, mark_unknown(f"${name}", "has an element that is set by itself")
        if values and values[0].type == "array":
            fields = [word for child in values[0].named_children for word in self._fields(child)]
            value: str | list[str] = fields
        else:
            value = "".join(self._scalar(child) for child in values)
        old = self.variables.get(name)
        if old is None or node.children[1].type != "+=":
            return name, value
        if isinstance(old.value, str) and isinstance(value, str):
            return name, old.value + value
        parts = (part if isinstance(part, list) else [part] for part in (old.value, value))
        return name, [word for part in parts for word in part]

    def _set(self, name: str, value: str | list[str], node: Node) -> None:
        self.variables[name] = _Value(value, self._line(node))
        if self.exports_all:
            self.exported.add(name)

    def _declare(self, node: Node) -> None:
        words = self._source(node).split()
        names = list[str]()
        for child in node.named_children:
            if child.type == "variable_assignment":
                name, value = self._evaluate(child)
                self._set(name, value, child)
                names.append(name)
            else:
                for word in self._fields(child):
                    if match := _ASSIGNMENT.fullmatch(word):
                        self._set(match[1], match[2], child)
                    names.append(match[1] if match else word)
        if words[0] == "export" or re.match(r"-\w*x", words[1] if len(words) > 1 else ""):
            self.exported.update(names)

    def _run_command(self, node: Node) -> None:
        redirects = node.named_children if node.type == "redirected_statement" else []
        body = redirects[0] if redirects else node
        if redirects and body.type != "command":
            self.run(body)
            return
        prefix, nodes = list[Node](), list[Node]()
        for child in body.named_children:
            gap = self.source[prefix[-1].end_byte : child.start_byte] if prefix else b""
            if b"\n" in gap.replace(b"\\\n", b"") and not nodes:
                # The grammar takes assignments on a line of their own for the next command's.
                self._run_all(prefix)
                prefix = []
            if child.type == "variable_assignment":
                prefix.append(child)
            elif child.type == "command_name":
                nodes += child.named_children
            else:
                nodes.append(child)
        for redirect in (*nodes, *redirects[1:]):
            if redirect.type == "file_redirect":
                # Words after the file are the command's.
                named = [one for one in redirect.named_children if one.type != "file_descriptor"]
                nodes += named[1:]
        nodes = [one for one in nodes if not one.type.endswith("redirect")]
        words = tuple(span for one in nodes for span in self._spans(one))
        given = (self._evaluate(one) for one in prefix)
        environment = {**self._environment(), **{n: v for n, v in given if isinstance(v, str)}}
        self._call(words, environment, node)
        parts = [part for redirect in redirects[1:] for part in redirect.named_children]
        for start, text in itertools.pairwise(parts):
            # `: <<END` is a comment.
            if text.type == "heredoc_body" and [word.text for word in words] != [":"]:
                own: list[str] | None = [] if self._source(start)[0] in "'\"\\" else None
                self._read_nested(self._source(text), self._line(text), environment, own)

    def _environment(self) -> dict[str, str]:
        own = self.variables
        found = {name: own[name].value for name in self.exported if name in own}
        return {name: value for name, value in found.items() if isinstance(value, str)}

    def _call(self, words: tuple[Span, ...], environment: dict[str, str], node: Node) -> None:
        texts = [without_marks(word.text, "?") for word in words]
        match texts:
            case []:
                return
            case ["set", *_] if "-a" in texts or "allexport" in texts:
                self.exports_all = True
            case ["set", "--", *_]:
                self.positional = [word.text for word in words[2:]]
            case ["shift", *count]:
                number = int(count[0]) if count and count[0].isdigit() else 1
                self.positional = self.positional and self.positional[number:]
            case ["eval", *_]:
                script = " ".join(word.text for word in words[1:])
                self._read_nested(script, self._line(node), environment, self.positional)
            case [name, *_] if name in self.functions and self.depth < _MAX_DEPTH:
                self._run_function(words, node)
            case [name, *_]:
                self.found.append(Argv(words, self._line(node), environment))
                is_shell = PurePath(name).name.endswith("sh")
                for at, word in enumerate(words[1:] if name not in _TALKERS else (), 1):
                    if re.search(r"vllm\S*\s", word.text):
                        given = [one.text for one in words[at + 2 :]] if is_shell else []
                        script = re.sub(r"\A--?[\w-]+=", "", word.text)
                        self._read_nested(script, word.line, environment, given)

    def _run_function(self, words: tuple[Span, ...], node: Node) -> None:
        before, first = self.positional, len(self.found)
        self.positional = [word.text for word in words[1:]]
        self.depth += 1
        self.run(self.functions[words[0].text])
        self.depth -= 1
        self.positional = before
        # A command is chosen by the line that calls it.
        self.found[first:] = [replace(c, line=self._line(node)) for c in self.found[first:]]

    def _read_nested(
        self, script: str, line: int, environment: dict[str, str], positional: list[str] | None
    ) -> None:
        if self.depth >= _MAX_DEPTH:
            return
        values = {name: _Value(value) for name, value in environment.items()}
        if positional is None or positional is self.positional:
            values = {**self.variables, **values}
        self._spend(len(script))
        inner = _Shell(
            script.encode(errors="replace"), None, line, values, set(environment), positional
        )
        inner.depth, inner.left = self.depth + 1, self.left
        inner.run(Parser(_BASH).parse(inner.source).root_node)
        self.found += inner.found

    def _source(self, node: Node) -> str:
        return self.source[node.start_byte : node.end_byte].decode(errors="replace")

    def _line(self, node: Node) -> int:
        return self.line + node.start_point[0]

    def _spans(self, node: Node) -> Iterator[Span]:
        fields, line = self._fields(node), self._line(node)
        start = end = -1
        if len(fields) == 1 and self.offset is not None:
            before = self.source[: node.start_byte]
            start = self.offset + (
                len(before) if before.isascii() else len(before.decode(errors="replace"))
            )
            end = start + len(self._source(node))
        for text in fields:
            yield Span(text, start, end, line)

    def _scalar(self, node: Node) -> str:
        return " ".join(self._fields(node, is_quoted=True))

    def _fields(self, node: Node, *, is_quoted: bool = False) -> list[str]:
        """Expand a word into none, one or several, as a shell does."""
        source = self._source(node)
        match node.type:
            case "raw_string":
                return [source[1:-1]]
            case "ansi_c_string":
                plain = source[2:-1].encode("latin-1", "backslashreplace")
                return [plain.decode("unicode_escape", "replace")]
            case "string":
                return self._join(node, 1, is_quoted=True) if source != '""' else [""]
            case "concatenation":
                return self._join(node, 0, is_quoted=is_quoted)
            case "simple_expansion" | "expansion":
                is_plain = node.type == "simple_expansion"
                value = self._parameter(source[1:]) if is_plain else self._expand(node)
                if isinstance(value, list):
                    return value
                return [value] if is_quoted else value.split()
            case kind if kind in _EXPANDED:
                return [mark_unknown(source, "is known only when it runs")]
        return [re.sub(r"\\(.)", r"\1", source.replace("\\\n", ""))]

    def _join(self, node: Node, quote_bytes: int, *, is_quoted: bool) -> list[str]:
        """Join the parts of a word, of which an expansion may be several words itself."""
        at, end = node.start_byte + quote_bytes, node.end_byte - quote_bytes
        in_string, words = quote_bytes > 0, list[list[str]]()
        for child in (*node.named_children, None):
            if in_string and child is not None and child.type not in _EXPANDED:
                continue
            gap = self.source[at : child.start_byte if child else end].decode(errors="replace")
            if in_string:
                gap = re.sub(r'\\([$`"\\\n])', lambda m: m[1].strip("\n"), gap)
            parts = [[gap]] if gap else []
            if child is not None:
                parts.append(self._fields(child, is_quoted=is_quoted))
                at = child.end_byte
            for part in filter(None, parts):
                words = words or [[]]
                words[-1].append(part[0])
                words += [[word] for word in part[1:]]
        return ["".join(word) for word in words]

    def _look_up(self, name: str) -> str | list[str] | None:
        """Return the value of `$name`; a list stays several words even in quotes."""
        self._spend(50)
        if name in "@*":
            return list(self.positional or ())
        if name.isdigit() and name != "0":
            return next(iter((self.positional or [])[int(name) - 1 : int(name)]), None)
        found = self.variables.get(name)
        if found is None:
            return None
        self._spend(len(found.value))
        return found.value if isinstance(found.value, str) else "".join(found.value[:1])

    def _parameter(self, name: str) -> str | list[str]:
        value = self._look_up(name)
        if value is not None:
            return value
        if not name.isdigit():
            return mark_unknown(f"${name}", "is not set in the file")
        is_called = self.positional is not None
        return "" if is_called else mark_unknown(f"${name}", "is given when the script is called")

    def _expand(self, node: Node) -> str | list[str]:
        """Expand `${...}`."""
        parameter, *rest = node.children[1:-1] or [node]
        name, operator = self._source(parameter), self._source(rest[0]) if rest else ""
        unread = mark_unknown(self._source(node), "is not evaluated")
        if parameter.type == "subscript" and len(parameter.named_children) == 2:
            array, index = map(self._source, parameter.named_children)
            found = self.variables.get(array)
            # No environment holds an array.
            words = [] if found is None else found.value
            words = words if isinstance(words, list) else [words]
            self._spend(sum(map(len, words)))
            if index in "@*":
                return words if not operator else [unread]
            is_there = index.isdigit() and int(index) < len(words)
            return words[int(index)] if is_there and not operator else unread
        if parameter.type not in ("variable_name", "special_variable_name"):
            return unread
        value = self._parameter(name)
        if not operator:
            return value
        own = self._look_up(name)
        is_missing = own is None or (operator[0] == ":" and not own)
        other = "".join(self._scalar(child) for child in rest[1:])
        match operator.lstrip(":"):
            case "-":
                return other if is_missing else value
            case "=":
                if is_missing:
                    self._set(name, other, node)
                return other if is_missing else value
            case "+":
                return "" if is_missing else other
            case "?":
                return value
        return unread
