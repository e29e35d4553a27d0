"""Read a shell script by its syntax tree: the words and environment of every command.

Nothing runs. What only running it would tell is marked in the words, with the reason.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

import tree_sitter_bash
from tree_sitter import Language, Node, Parser

from mmcalib.configs.commands import Command, Span, find_releases, mark_unknown, without_marks
from mmcalib.text import one_line

_BASH: Final = Language(tree_sitter_bash.language())
_CLAUSES: Final = ("elif_clause", "else_clause", "case_item")
# Ends of the types of nodes that a shell expands.
_UNKNOWN: Final = ("expansion", "substitution", "ansi_c_string")
# They show their words and run none of them.
_TALKERS: Final = ("echo", "printf", "grep", "pgrep", "pkill")
# Commands run and characters expanded, so that no script grows when it is read.
_MAX_STEPS: Final = 1 << 21


class Script:
    """The commands of a script, and notes about what of it is not read.

    It begins at this `offset` (None: nowhere) and `line` of the file, inside the `outer` script.
    Raises OverflowError and RecursionError for one that is nested or grows too much.
    """

    def __init__(
        self,
        text: str,
        environment: Mapping[str, str],
        offset: int | None,
        line: int = 1,
        quote: str = "|",
        positional: Sequence[str] = (),
        outer: Script | None = None,
    ) -> None:
        self.source, self.offset = text.encode(errors="replace"), offset
        self.line, self.quote = line, quote
        # Each has one value, or those of an array.
        self.variables = {name: [value] for name, value in environment.items()}
        self.exported, self.positional = set(environment), list(positional)
        self.functions: dict[str, Node] = {}
        self.commands: list[Command] = outer.commands if outer else []
        self.notes: list[str] = outer.notes if outer else []
        # What may still be expanded.
        self.left: list[int] = outer.left if outer else [_MAX_STEPS]
        node = root = Parser(_BASH).parse(self.source).root_node
        self._run(root)
        while node.has_error and not node.is_error and not node.is_missing:
            node = next(child for child in node.children if child.has_error)
        if root.has_error:
            self.notes.append(f"line {self._line(node)}: bash's grammar ends here; read in part")

    def find_servers(self) -> list[Command]:
        """Return the servers that it starts; each has the notes and releases of the whole."""
        releases = find_releases([word.text for one in self.commands for word in one.words])
        ends = "options of no command: a blank line or comment before them ends it"
        orphans = [one.line for one in self.commands if one.words[0].text.startswith("--")]
        notes = [*(f"line {line}: {ends}" for line in orphans), *self.notes]
        servers = (server for one in self.commands for server in one.find_server())
        return [replace(s, unread=[*notes, *s.unread], releases=releases) for s in servers]

    def _run(self, node: Node) -> None:
        self._spend(100)
        parts, source = node.named_children, self._source(node)
        match node.type:
            case "command" | "redirected_statement":
                self._run_command(node)
            case "variable_assignment":
                self._assign(node)
            case "declaration_command":
                names = [self._assign(part) for part in parts]
                if source.startswith(("export", "declare -x", "typeset -x")):
                    self.exported.update(names)
            case "function_definition":
                self.functions[self._source(parts[0])] = parts[-1]
            case "unset_command":
                self._note(node)
            case "list":
                self._run(parts[0])
                is_and = all(child.type != "||" for child in node.children)
                if is_and and not source.startswith(("[", "test ")):
                    self._run(parts[-1])
                else:
                    self._run_branches(parts[-1:])
            case kind if kind.endswith("_statement") or kind in (*_CLAUSES, "subshell"):
                if kind == "for_statement":
                    name, why = (
                        self._source(parts[0]),
                        f"is set in a loop on line {self._line(node)}",
                    )
                    self.variables[name] = [mark_unknown(f"${name}", why)]
                self._run_branches(parts)
            case _:
                for part in parts:
                    self._run(part)

    def _spend(self, steps: int) -> None:
        self.left[0] -= steps
        if self.left[0] < 0:
            raise OverflowError

    def _note(self, node: Node) -> None:
        self.notes.append(f"line {self._line(node)}: {one_line(self._source(node))} is not read")

    def _run_branches(self, nodes: Sequence[Node]) -> None:
        """Run each branch by itself; what one sets is unknown after them."""
        before, changed = dict(self.variables), dict[str, list[str]]()
        for node in nodes:
            if node.type in _CLAUSES:
                self.variables = dict(before)
            self._run(node)
            self._spend(len(before))
            for name, value in self.variables.items():
                if value != before.get(name):
                    why = f"is set in a branch on line {self._line(node)}"
                    changed.setdefault(name, [mark_unknown(f"${name}", why)])
        self.variables = before | changed

    def _assign(self, node: Node) -> str:
        """Set a variable, in an assignment or as a word of `export`, and return its name."""
        if node.type != "variable_assignment":
            name, is_set, text = self._text(node).partition("=")
            self.variables |= {name: [text]} if is_set else {}
            return name
        target, *values = node.named_children
        name = self._source(target)
        old = self.variables.get(name, []) if node.children[1].type == "+=" else []
        if target.type == "subscript":
            name = self._source(target.named_children[0])
            self.variables[name] = [mark_unknown(f"${name}", "has an element that is set alone")]
        elif values and values[0].type == "array":
            words = [word for one in values[0].named_children for word in self._fields(one)]
            self.variables[name] = [*old, *words]
        else:
            self.variables[name] = ["".join([*old[:1], *map(self._text, values)]), *old[1:]]
        return name

    def _run_command(self, node: Node) -> None:
        parts, prefix, nodes = node.named_children, list[Node](), list[Node]()
        if node.type == "redirected_statement":
            if parts[0].type == "command":
                parts[:1] = parts[0].named_children
            else:
                self._run(parts.pop(0))
        for part in parts:
            gap = self.source[prefix[-1].end_byte : part.start_byte] if prefix else b""
            if b"\n" in gap.replace(b"\\\n", b"") and not nodes:
                # The grammar takes assignments on a line of their own for the next command's.
                for one in prefix:
                    self._assign(one)
                prefix = []
            match part.type:
                case "variable_assignment" if not nodes:
                    prefix.append(part)
                case "file_redirect":
                    # Words after the file are the command's.
                    nodes += [n for n in part.named_children if n.type != "file_descriptor"][1:]
                case "heredoc_redirect" | "herestring_redirect":
                    if "vllm" in self._source(part):
                        self._note(part)
                case kind:
                    nodes += part.named_children if kind == "command_name" else [part]
        words = tuple(span for one in nodes for span in self._spans(one))
        outer = self.variables
        self.variables = dict(outer) if prefix else outer
        names = {self._assign(one) for one in prefix} | self.exported
        given = {n: values[0] for n in names if len(values := self.variables.get(n, [])) == 1}
        self._spend(len(given))
        self.variables = outer
        self._call(words, given, node)

    def _call(self, words: tuple[Span, ...], environment: dict[str, str], node: Node) -> None:
        match [without_marks(word.text, "?") for word in words]:
            case []:
                pass
            case ["eval" | "source" | "." | "shift", *_] | ["set", "--" | "-a", *_]:
                self._note(node)
            case [name, *_] if name in self.functions:
                # Without its name, a function that calls itself ends.
                body, before = self.functions.pop(name), self.positional
                self.positional = [word.text for word in words[1:]]
                self._run(body)
                self.positional, self.functions[name] = before, body
            case [name, *_]:
                self.commands.append(Command(words, (), self._line(node), environment))
                for at, word in enumerate(words[1:] if name not in _TALKERS else (), 3):
                    # A script in quotes, for another shell or host.
                    if re.search(r"vllm\S*\s", word.text):
                        script = re.sub(r"\A--?[\w-]+=", "", word.text)
                        self._spend(len(script))
                        given = [one.text for one in words[at:]]
                        Script(script, environment, None, word.line, "|", given, self)

    def _source(self, node: Node) -> str:
        return self.source[node.start_byte : node.end_byte].decode(errors="replace")

    def _line(self, node: Node) -> int:
        return self.line + node.start_point[0]

    def _spans(self, node: Node) -> Iterator[Span]:
        fields, start, glue = self._fields(node), -1, None
        if len(fields) == 1 and self.offset is not None:
            before = self.source[: node.start_byte].decode(errors="replace")
            start = self.offset + len(before)
            glue = re.search(r"\s+(\\\n\s*)?\Z", before[-1000:])
        end = start + len(self._source(node)) if start >= 0 else -1
        space = glue[0] if glue and self.quote == "|" else " "
        for text in fields:
            yield Span(text, start, end, self._line(node), "shell", space, self.quote)

    def _text(self, node: Node) -> str:
        return " ".join(self._fields(node, is_quoted=True))

    def _fields(self, node: Node, *, is_quoted: bool = False) -> list[str]:
        """Expand a word into none, one or several, as a shell does."""
        source = self._source(node)
        match node.type:
            case "raw_string":
                return [source[1:-1]]
            case "string":
                return self._join(node, 1, is_quoted=True) or [""] * (source == '""')
            case "concatenation":
                return self._join(node, 0, is_quoted=is_quoted)
            case "simple_expansion" | "expansion":
                words = self._expand(node)
                return words if is_quoted else [part for word in words for part in word.split()]
            case kind if kind.endswith(_UNKNOWN):
                return [mark_unknown(source, "is known only when it runs")]
        return [re.sub(r"\\(.)", r"\1", source.replace("\\\n", ""))]

    def _join(self, node: Node, quote_bytes: int, *, is_quoted: bool) -> list[str]:
        """Join the parts of a word, of which an expansion may be several words itself."""
        at, end = node.start_byte + quote_bytes, node.end_byte - quote_bytes
        words = list[str]()
        for child in (*node.named_children, None):
            if quote_bytes and child is not None and not child.type.endswith(_UNKNOWN):
                continue
            gap = self.source[at : child.start_byte if child else end].decode(errors="replace")
            if quote_bytes:
                gap = re.sub(r'\\([$`"\\\n])', lambda m: m[1].strip("\n"), gap)
            fields = [] if child is None else self._fields(child, is_quoted=is_quoted)
            at = at if child is None else child.end_byte
            for first, *more in filter(None, ([gap] if gap else [], fields)):
                words[-1:] = ["".join([*words[-1:], first]), *more]
        return words

    def _expand(self, node: Node) -> list[str]:
        """Return the value of `$X` or `${X…}`, or the values of an array."""
        parameter, *rest = [c for c in node.children if c.type not in ("$", "${", "}")] or [node]
        name, array = (
            self._source(parameter),
            re.fullmatch(r"(\w+)\[[@*]\]", self._source(parameter)),
        )
        if name in ("@", "*"):
            values = self.positional
        elif name.isdigit():
            values = self.positional[int(name) - 1 : int(name)]
        else:
            values = self.variables.get(array[1] if array else name, [])
            values = values if array else values[:1]
        self._spend(50 + sum(map(len, values)))
        operator, is_list = self._source(rest[0]) if rest else "", array or name in ("@", "*")
        if not (is_list or re.fullmatch(r"\w+", name)) or operator not in (
            "",
            ":-",
            "-",
            ":=",
            "=",
        ):
            return [mark_unknown(self._source(node), "is not evaluated")]
        if operator and (not any(values) if operator[0] == ":" else not values):
            values = ["".join(map(self._text, rest[1:]))]
            if "=" in operator:
                self.variables[name] = values
        return values or (
            [] if is_list else [mark_unknown(self._source(node), "is not set in the file")]
        )
