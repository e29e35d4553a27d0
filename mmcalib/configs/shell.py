"""Read a shell script by its syntax tree: the words and environment of every command.

Nothing runs. What only running it would tell is marked in the words, with the reason.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import Final

import tree_sitter_bash
from tree_sitter import Language, Node, Parser

from mmcalib.configs.commands import (
    HIDDEN,
    OTHERS,
    Command,
    Span,
    Unread,
    mark_unknown,
    without_marks,
)
from mmcalib.configs.programs import evaluate_arithmetic
from mmcalib.text import one_line

_BASH: Final = Language(tree_sitter_bash.language())
_CLAUSES: Final = ("elif_clause", "else_clause", "case_item")
_LOOPS: Final = ("for_statement", "c_style_for_statement", "while_statement")
_BRANCHES: Final = (*_CLAUSES, *_LOOPS, "if_statement", "case_statement", "subshell")
# Ends of the types of nodes that a shell expands.
_EXPANDED: Final = ("expansion", "substitution", "ansi_c_string")
# They show their words and run none of them.
_TALKERS: Final = frozenset(("echo", "printf", "grep", "pgrep", "pkill", "rem", "::"))
# A template, and what a reader or supervisor fills in; each becomes one word of the same length.
_TO_FILL_IN: Final = re.compile(
    r"\$?\{\{[^{}\n]*\}\}|(?<=[\s=])<[A-Za-z][^<>\n]*[A-Za-z]>(?=\s)|%\(\w+\)s"
)
_AS_WORD: Final = {code: HIDDEN[code] for code in map(ord, " $<>()|&;\"'`")}
# A prompt, as people copy it with the command.
_PROMPT: Final = re.compile(r"(?m)^[ \t]*(?:[\w.-]+@[^\s$]+)?\$ (?=\w)|(?<=\\\n)> (?= *-)")
# What hands its input to a shell, or writes it into a script.
_TO_SHELL: Final = re.compile(r"(?:^|[\s/|.])(?:(?:ba|da|z)?sh|ssh|sbatch|su)\b")
# A script in quotes, for another shell or host.
_QUOTED: Final = re.compile(r"vllm\S*[\s\\]+(?:serve\s+\S|[^\w\s]|\S+/\S)")
# Commands run and characters expanded, so that no script grows when it is read.
_MAX_STEPS: Final = 1 << 21
# The grammar takes time as the square of these in a word.
_SLOW, _MOST_SLOW = re.compile(r"[@?)>|&;]"), 500
# Operators of `${X…}` that are evaluated, and those of arithmetic that set a variable.
_DEFAULTS: Final = ("", ":-", "-", ":=", "=")
_SETTERS: Final = frozenset(("=", "++", "--", "+=", "-=", "*=", "/=", "%="))
# What a shell makes several words of.
_BRACES: Final = re.compile(r"(?<![\\$])\{(?:[^{},]*,[^{}]*|\w+\.\.[\w.]+)\}")
ORPHANS: Final = "options of no command: a blank line, a comment or a blank after \\ ends it"


class Script:
    """The commands of a script, and notes about what of it is not read.

    It begins at this `offset` (None: nowhere) and `line` of the file, inside the `outer` script,
    and has that one's variables without an `environment` of its own.
    Raises OverflowError and RecursionError for one that is nested or grows too much.
    """

    def __init__(
        self,
        text: str,
        environment: Mapping[str, str] | None,
        offset: int | None,
        line: int = 1,
        form: str = "|",
        outer: Script | None = None,
        positional: Sequence[str] = (),
    ) -> None:
        # At the beginnings of lines they are as slow.
        starts = "".join(line.lstrip()[:1] for line in text.splitlines())
        if any(len(_SLOW.findall(word)) > _MOST_SLOW for word in (*text.split(), starts)):
            raise OverflowError
        # The grammar has no line continuation at the end of the text, and no templates.
        text = re.sub(r"\\\s*\Z", "\n", text)
        text = _TO_FILL_IN.sub(lambda m: m[0].translate(_AS_WORD), text)
        text = _PROMPT.sub(lambda m: " " * len(m[0]), text)
        self.source, self.offset, self.line = text.encode(errors="replace"), offset, line
        self.form, self.positional = form, [*positional]
        self.exported = {OTHERS, *(environment or ())}
        # Each has one value, or those of an array.
        self.variables = {name: [value] for name, value in (environment or {}).items()}
        if environment is None and outer:
            self.variables, self.exported = outer.variables, outer.exported
        self.functions: dict[str, Node] = {}
        # A byte, and the characters before it.
        self._place = 0, 0
        # The line of the outermost call of a function, while that runs.
        self.call: int = outer.call if outer else 0
        self.commands: list[Command] = outer.commands if outer else []
        self.notes: list[Unread] = outer.notes if outer else []
        # What may still be expanded.
        self.left: list[int] = outer.left if outer else [_MAX_STEPS]
        node = Parser(_BASH).parse(self.source).root_node
        self._run(node)
        while node.has_error and not (node.is_error or node.is_missing):
            node = next(child for child in node.children if child.has_error)
        if node.has_error:
            self.notes.append(Unread(self._line(node), "bash's grammar ends here; read in part"))

    def find_servers(self) -> list[Command]:
        """Return the servers that it starts; each has the notes of the whole script."""
        servers = [server for one in self.commands for server in one.find_server()]
        lines = Counter(one.line for one in servers)
        places = [(lines[one.line] > 1 and one.call) or one.line for one in servers]
        noted = [replace(one, unread=[*self.notes, *one.unread]) for one in servers]
        return [replace(one, line=line) for one, line in zip(noted, places, strict=True)]

    def _run(self, node: Node) -> None:
        self._spend(100 + len(self.variables))
        parts, source = node.named_children, self._source(node)
        match node.type:
            case "command":
                self._run_command(node, parts)
            case "redirected_statement" if parts[0].type == "command":
                self._run_command(node, [*parts[0].named_children, *parts[1:]])
            case "variable_assignment":
                self._assign(node)
            case "function_definition":
                self.functions[self._source(parts[0])] = parts[-1]
            case "unset_command":
                for part in parts:
                    self.variables.pop(self._source(part), None)
            case "herestring_redirect" | "heredoc_redirect" if "vllm" in source:
                self._note(node)
            case "list":
                self._run(parts[0])
                is_or = any(child.type == "||" for child in node.children)
                may_run = is_or or source.startswith(("[", "test "))
                (self._run_branches if may_run else self._run_all)(parts[1:])
            case kind:
                if source.startswith("((") or kind in _LOOPS:
                    self._forget_counted(node)
                if kind == "for_statement":
                    self._forget(self._source(parts[0]), "in a loop", node)
                elif kind == "c_style_for_statement":
                    parts = parts[-1:]
                elif kind[:4] == "decl" and source.startswith(("export", "declare -x")):
                    self.exported |= {self._source(part).partition("=")[0] for part in parts}
                    if any(part.type.endswith((*_EXPANDED, "string")) for part in parts):
                        self._note(node, may_set_any=True)
                (self._run_branches if kind in _BRANCHES else self._run_all)(parts)

    def _run_all(self, nodes: Sequence[Node]) -> None:
        for node in nodes:
            self._run(node)

    def _run_branches(self, nodes: Sequence[Node]) -> None:
        """Run each branch by itself; what one sets or adds is unknown after them."""
        before, changed = dict(self.variables), dict[str, list[tuple[Node, list[str]]]]()
        positional = self.positional
        for node in nodes:
            if node.type in _CLAUSES:
                self.variables = dict(before)
            self._run(node)
            for name, value in self.variables.items():
                if name == OTHERS:
                    before[OTHERS] = value
                elif value != before.get(name):
                    self._spend(sum(map(len, value)))
                    changed.setdefault(name, []).append((node, value))
        if self.positional != positional:
            why = f"is shifted in a branch on line {self._line(nodes[0])}"
            self.positional = [mark_unknown("$@", why)]
        self.variables = before
        for name, states in changed.items():
            old, options = before.get(name, []), dict[str, str]()
            for node, value in states:
                added = _options_added(old, value)
                why = f"is added to ${name} in a branch on line {self._line(node)}"
                options = {word: mark_unknown("it", why) for word in added} | options
                if not added:
                    self._forget(name, "in a branch", states[0][0])
                    break
            else:
                own = [*old, *map("".join, options.items())]
                is_text = all(len(value) == 1 for _, value in states)
                self.variables[name] = [" ".join(own)] if is_text else own

    def _spend(self, steps: int) -> None:
        self.left[0] -= steps
        if self.left[0] < 0:
            raise OverflowError

    def _note(self, node: Node, *, may_set_any: bool = False) -> None:
        self.notes.append(Unread(self._line(node), f"{one_line(self._source(node))} is not read"))
        if may_set_any:
            self.variables[OTHERS] = [f"may be set by line {self._line(node)}, which is not read"]

    def _forget(self, name: str, where: str, node: Node) -> None:
        why = f"is set {where} on line {self._line(node)}"
        self.variables[name] = [mark_unknown(f"${name}", why)]

    def _forget_counted(self, node: Node) -> None:
        """Forget what arithmetic sets, as `((N++))` or, in a loop, `N=$((N + 1))`."""
        self._spend(1)
        parts = node.named_children
        sets = parts and not _SETTERS.isdisjoint(child.type for child in node.children)
        if sets and (node.type.endswith("_expression") or parts[-1].type == "arithmetic_expansion"):
            self._forget(self._source(parts[0]), "by arithmetic", node)
        for part in parts:
            self._forget_counted(part)

    def _assign(self, node: Node) -> str:
        """Set a variable, and return its name."""
        target, *values = node.named_children
        name = self._source(target).partition("[")[0]
        old = self.variables.get(name, []) if node.children[1].type == "+=" else []
        if target.type == "subscript":
            self._forget(name, "in part", node)
        elif values and values[0].type == "array":
            parts = (one for one in values[0].named_children if one.type != "comment")
            self.variables[name] = [*old, *(word for one in parts for word in self._fields(one))]
        else:
            self.variables[name] = ["".join([*old[:1], *map(self._text, values)]), *old[1:]]
        return name

    def _run_command(self, node: Node, parts: Sequence[Node]) -> None:
        prefix, words, bodies = list[Node](), list[Node](), list[Node]()
        to_shell = _TO_SHELL.search(self._source(node).partition("\n")[0])
        for part in parts:
            gap = self.source[prefix[-1].end_byte : part.start_byte] if prefix else b""
            if b"\n" in gap.replace(b"\\\n", b"") and not words:
                # The grammar takes assignments on a line of their own for the next command's.
                self._run_all(prefix)
                prefix = []
            match part.type:
                case "variable_assignment" if not words:
                    prefix.append(part)
                case "file_redirect":
                    # Words after the file are the command's.
                    words += [n for n in part.named_children if n.type != "file_descriptor"][1:]
                case "heredoc_redirect" if to_shell:
                    bodies.append(part)
                case "heredoc_redirect" | "herestring_redirect":
                    self._run(part)
                case kind:
                    words += part.named_children if kind == "command_name" else [part]
        spans = [span for one in words for span in self._spans(one)]
        outer, self.variables = self.variables, {**self.variables}
        names = {self._assign(one) for one in prefix} | self.exported
        given = {n: values[0] for n in names if len(values := self.variables.get(n, [])) == 1}
        self.variables = outer
        for one in bodies:
            its, own = given, one.named_children if one.named_children[1:] else [one, one]
            script = self._source(own[-2])
            if self._source(own[0])[:1] not in "'\"\\":
                script = script.replace("\\$", "$")
                its = {name: values[0] for name, values in outer.items() if len(values) == 1}
            self._spend(len(script))
            Script(script, its, None, self._line(own[-2]), outer=self)
        if spans:
            self._call(Command(spans, (), spans[0].line, given, call=self.call), node)

    def _call(self, command: Command, node: Node) -> None:
        words = command.words
        match [without_marks(word.text, "?") for word in words]:
            case ["eval", *texts] if "vllm" in " ".join(texts):
                script, more = " ".join(word.text for word in words[1:]), [*self.positional]
                self._spend(len(script))
                Script(script, None, None, command.line, outer=self, positional=more)
            case ["shift", *number] if all(map(str.isdecimal, number[:1])):
                self.positional = self.positional[int("".join(number[:1]) or 1) :]
            case ["mapfile" | "readarray" | "read" | "let", *texts]:
                for text in texts:
                    self._forget(re.split(r"\W", text)[0], "from input", node)
            case ["source" | ".", file, *_] if not file.endswith("/activate"):
                self._note(node, may_set_any=True)
            case ["eval" | "source" | "." | "shift", *_] | ["set", "--" | "-a", *_]:
                self._note(node)
            case [name, *_] if name in self.functions:
                # Without its name, a function that calls itself ends.
                body, before, call = self.functions.pop(name), self.positional, self.call
                self.positional, self.call = [word.text for word in words[1:]], call or command.line
                self._run(body)
                self.positional, self.functions[name], self.call = before, body, call
            case [name, *_] if name.startswith("--"):
                self.commands.append(command)
                self.notes.append(Unread(command.line, ORPHANS))
            case [*texts] if _TALKERS.isdisjoint(PurePath(text).name for text in texts[:2]):
                self.commands.append(command)
                if texts[0] == "xargs":
                    self.notes.append(Unread(command.line, "what xargs adds is not read"))
                for at, word in enumerate(words[1:], 3):
                    if _QUOTED.search(word.text):
                        script = re.sub(r"\A--?[\w-]+=", "", word.text)
                        self._spend(len(script) + at)
                        its, more = command.find_environment(at - 2), [w.text for w in words[at:]]
                        Script(script, its, None, word.line, outer=self, positional=more)

    def _source(self, node: Node) -> str:
        return self.source[node.start_byte : node.end_byte].decode(errors="replace")

    def _line(self, node: Node) -> int:
        return self.line + node.start_point[0]

    def _spans(self, node: Node) -> list[Span]:
        fields, line, start, end = self._fields(node), self._line(node), -1, -1
        if len(fields) == 1 and self.offset is not None:
            last, chars = self._place if self._place[0] <= node.start_byte else (0, 0)
            chars += len(self.source[last : node.start_byte].decode(errors="replace"))
            self._place = node.start_byte, chars
            start = self.offset + chars
            end = start + len(self._source(node))
        return [Span(text, start, end, line, self.form) for text in fields]

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
            case "concatenation" | "brace_expression":
                hiding = (*_EXPANDED, "string")
                bare = [one for one in node.named_children if not one.type.endswith(hiding)]
                if node.type[0] == "b" or _BRACES.search("".join(map(self._source, bare))):
                    at = source.find("{")
                    return [source[:at] + mark_unknown(source[at:], "is several words to a shell")]
                return self._join(node, 0, is_quoted=is_quoted)
            case "simple_expansion" | "expansion":
                words = self._expand(node)
                return words if is_quoted else [part for word in words for part in word.split()]
            case "arithmetic_expansion" if (value := self._calculate(source.strip())) is not None:
                return [str(value)]
            case kind if kind.endswith(_EXPANDED):
                self._forget_counted(node)
                return [mark_unknown(source, "is known only when it runs")]
        return [re.sub(r"\\(.)", r"\1", source.replace("\\\n", ""))]

    def _calculate(self, source: str) -> int | None:
        def value(name: re.Match[str]) -> str:
            return "".join(self.variables.get(name[1], [])[:1]) or "?"

        whole = re.fullmatch(r"\$\(\((.*)\)\)", source)
        text = re.sub(r"\$?\{?\b([A-Za-z_]\w*)\b\}?", value, whole[1] if whole else "?")
        return evaluate_arithmetic(text.replace("/", "//"))

    def _join(self, node: Node, quote_bytes: int, *, is_quoted: bool) -> list[str]:
        """Join the parts of a word, of which an expansion may be several words itself."""
        at, end, words = node.start_byte + quote_bytes, node.end_byte - quote_bytes, list[str]()
        for child in (*node.named_children, None):
            if quote_bytes and child is not None and not child.type.endswith(_EXPANDED):
                continue
            # In quotes, the grammar takes blanks before an expansion for its own.
            own = self.source[child.start_byte : child.end_byte] if child else b""
            stop = child.end_byte - len(own.lstrip() if quote_bytes else own) if child else end
            gap = self.source[at:stop].decode(errors="replace")
            if quote_bytes:
                gap = re.sub(r'\\([$`"\\\n])', lambda m: m[1].strip("\n"), gap)
            fields = self._fields(child, is_quoted=is_quoted) if child else []
            at = child.end_byte if child else end
            for first, *more in filter(None, ([gap] if gap else [], fields)):
                words[-1:] = ["".join([*words[-1:], first]), *more]
        return words

    def _expand(self, node: Node) -> list[str]:
        """Return the value of `$X` or `${X…}`, or the values of an array."""
        parts = [child for child in node.children if child.type not in ("$", "${", "}")]
        name, operator, *_ = [*map(self._source, parts), "", ""]
        array = re.fullmatch(r"(\w+)\[[@*]\]|[@*]", name)
        if name in ("@", "*"):
            values = self.positional
        elif name.isdigit():
            values = self.positional[int(name) - 1 : int(name)]
        else:
            values = self.variables.get(array[1], []) if array else self.variables.get(name, [])[:1]
        self._spend(50 + sum(map(len, values)))
        if not (array or name.isidentifier() or name.isdigit()) or operator not in _DEFAULTS:
            return [mark_unknown(self._source(node), "is not evaluated")]
        others = self.variables.get(OTHERS, []) if name.isidentifier() and not values else []
        if operator and not others and not (any(values) if operator[0] == ":" else values):
            values = ["".join(map(self._text, parts[2:]))]
            if operator[-1] == "=":
                self.variables[name] = values
        why = "".join(others) or "is not set in the file"
        return values or ([] if array else [mark_unknown(self._source(node), why)])


def _options_added(old: Sequence[str], new: Sequence[str]) -> list[str]:
    """Return the options that a variable has in addition; none if it has anything else."""
    start, text = " ".join(old), " ".join(new)
    words = text[len(start) :].split()
    is_more = text.startswith(start) and (not start or text[len(start) : len(start) + 1] == " ")
    is_more = is_more and bool(words) and re.match("-+[A-Za-z]", words[0]) is not None
    return [without_marks(word) for word in words if word.startswith("-")] if is_more else []
