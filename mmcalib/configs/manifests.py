"""Read the containers of Kubernetes manifests, compose files and charts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import yaml

from mmcalib.configs.commands import Command, Form, Span, argument, find_releases, mark_unknown
from mmcalib.configs.shell import Script
from mmcalib.results.engine_yaml import serve_option

# KServe's runtime handles these itself and passes the others on to vLLM.
_KSERVE: Final = {"model_id": "--model", "model_name": "--served-model-name", "backend": ""}
# Only a container of vLLM has these fields.
_SERVERS: Final = frozenset(("modelFormat", "modelURL", "extraArgs"))
# Fields of `vllmConfig` in production-stack's chart.
_CHART: Final = (
    *("maxModelLen", "maxNumSeqs", "gpuMemoryUtilization", "tensorParallelSize", "dtype"),
    *("enableChunkedPrefill", "enablePrefixCaching"),
)


@dataclass(frozen=True, slots=True)
class _Form:
    """Fields that hold a container's command line in order, or its model; its variables."""

    keys: tuple[str, ...]
    variable: re.Pattern[str]
    models: tuple[str, ...] = ()


_KUBELET: Final = re.compile(r"\$(?:\$|\((\w+)\))")
_VARIABLE: Final = re.compile(r"\$(?:\$|\{(\w+)(?::?-([^}]*))?\}|(\w+)|\{[^}]*\})")
_KUBERNETES: Final = _Form(("command", "args"), _KUBELET, ("storageUri", "uri", "url", "model"))
_COMPOSE: Final = _Form(("entrypoint", "command"), _VARIABLE)
_VALUES: Final = _Form(("command", "args", "extraArgs"), _KUBELET, ("modelURL", "model"))


def read_object(root: yaml.Node, text: str) -> list[Command] | None:
    """Return the servers of a Kubernetes object, compose file or chart; None for other YAML.

    Containers that only look like vLLM's count if no others do.
    """
    top, found = fields_of(root), list[tuple[bool, Command]]()
    name, form = _scalar(fields_of(top.get("metadata")).get("name")) or "", _VALUES
    paths: list[tuple[str, tuple[yaml.Node, ...]]] = [(name, path) for path in _mappings(root, ())]
    if not top.keys().isdisjoint(("apiVersion", "kind")):
        form = _KUBERNETES
    elif "services" in top:
        form, services = _COMPOSE, fields_of(top["services"])
        paths = [(name, (node,)) for name, node in services.items() if fields_of(node)]
    for name, path in paths:
        around = fields_of(path[-2]) if path[1:] else {}
        if form is not _VALUES or around.get("vllmConfig") is not path[-1]:
            found += _Container(form, text, path, name).read()
    sure = [command for is_sure, command in found if is_sure]
    return sure or [command for _, command in found] or (None if form is _VALUES else [])


class _Container:
    """A container, and the mappings around it."""

    def __init__(self, form: _Form, text: str, path: Sequence[yaml.Node], name: str) -> None:
        self.form, self.text, self.line = form, text, path[-1].start_mark.line + 1
        self.fields = fields_of(path[-1])
        self.name = _scalar(self.fields.get("name")) or name
        self.model = _model_around(path, form.models)
        # In production-stack's chart.
        self.vllm = fields_of(self.fields.get("vllmConfig")) if form is _VALUES else {}
        self.fields |= self.vllm
        every = _environment(self.fields)
        self.environment = {name: value for name, value in every if value is not None}

    def read(self) -> Iterator[tuple[bool, Command]]:
        """Yield the servers that it starts, and whether they are vLLM's for sure."""
        tag = f"{_scalar(self.fields.get('repository'))}:{_scalar(self.fields.get('tag'))}"
        image = _scalar(self.fields.get("image")) or tag
        words, script = self._read_words()
        words[:0] = [word for key in _CHART for word in _chart_words(key, self.vllm.get(key))]
        if script is not None:
            found, is_sure = self._read_script(script).find_servers(), True
        else:
            # Without a program of its own, it starts the image's.
            is_sure = "vllm" in image and self.form.keys[0] not in self.fields
            is_sure = is_sure or not _SERVERS.isdisjoint(self.fields)
            is_guess = any(word.text.startswith("--") for word in words[:1])
            starts = bool(words) and (is_sure or is_guess)
            found = Command(words, (), self.line, self.environment).find_server(starts=starts)
            is_sure = is_sure or not is_guess
        unread = [
            f"line {node.start_mark.line + 1}: vllmConfig.{key} is not read"
            for key, node in self.vllm.items()
            if key not in (*_CHART, "extraArgs")
        ]
        for one in found:
            is_kserve = "modelFormat" in self.fields
            command = replace(
                one,
                words=list(_kserve_words(one.words)) if is_kserve else one.words,
                unread=[*unread, *one.unread],
                # Several commands of one container's script are told apart by their lines.
                name=self.name if len(found) == 1 else "",
                model=self.model,
                releases=[*find_releases([image]), *one.releases],
            )
            yield is_sure, command

    def _read_words(self) -> tuple[list[Span], yaml.ScalarNode | None]:
        """Return the words of the command line, or the script that it hands to a shell."""
        words: list[Span] = []
        for node in filter(None, map(self.fields.get, self.form.keys)):
            is_list, is_flow = (
                isinstance(node, yaml.SequenceNode),
                getattr(node, "flow_style", None),
            )
            glue = ", " if is_flow else f"\n{' ' * node.start_mark.column}- "
            for one in node.value if is_list else [node]:
                value, is_script = _scalar(one), words and re.fullmatch(r"-\w*c", words[-1].text)
                if is_script and words[0].text.endswith("sh") and isinstance(one, yaml.ScalarNode):
                    return [], one
                if one is node and isinstance(one, yaml.ScalarNode):
                    commands = self._read_script(one, is_one_line=True).commands
                    if len(commands) > 1:
                        return [], one
                    words += commands[0].words if commands else ()
                    continue
                value = mark_unknown("it", "is no text") if value is None else self._expand(value)
                words.append(_span(value, one, "list" if is_flow else "item", glue))
        return words, None

    def _expand(self, text: str, *, is_script: bool = False) -> str:
        def value(match: re.Match[str]) -> str:
            if match[0] == "$$":
                return "$"
            name, *default = [group for group in match.groups() if group is not None] or [""]
            if name in self.environment or default:
                return self.environment.get(name) or "".join(default)
            # In a script it may be the shell's own.
            return match[0] if is_script else mark_unknown(match[0], "is not set in the file")

        return self.form.variable.sub(value, text)

    def _read_script(self, node: yaml.ScalarNode, *, is_one_line: bool = False) -> Script:
        """Read a script; its words have places if the file spells them as YAML does."""
        quote, line = node.style or "", node.start_mark.line + 1
        start, end = node.start_mark.index, end_of(node)
        if quote in ("|", ">"):
            start = self.text.find("\n", start)
        elif quote:
            start, end = start + 1, end - 1
        raw, value = self.text[start:end], self._expand(node.value, is_script=not is_one_line)
        # On one line, a line break is only a blank.
        value = value.replace("\n", " ") if is_one_line else value
        raw = raw.replace("\n", " ") if is_one_line or quote != "|" else raw
        script = Script(raw, self.environment, start, line, quote)
        line += quote in ("|", ">")
        plain = Script(value, self.environment, None, line)
        texts = ([[w.text for w in c.words] for c in one.commands] for one in (script, plain))
        return script if next(texts) == next(texts) else plain


def _span(text: str, node: yaml.Node, form: Form, glue: str = " ") -> Span:
    return Span(text, node.start_mark.index, end_of(node), node.start_mark.line + 1, form, glue)


def _chart_words(key: str, node: yaml.Node | None) -> list[Span]:
    if node is None:
        return []
    value = mark_unknown("it", "is no text") if _scalar(node) is None else node.value
    is_bool = node.tag == "tag:yaml.org,2002:bool"
    name = re.sub("[A-Z]", lambda letter: f"_{letter[0].lower()}", key)
    words = serve_option(name, yaml.safe_load(value) if is_bool else value)
    return [_span(word, node, "field") for word in words]


def _kserve_words(words: Sequence[Span]) -> Iterator[Span]:
    for word in words:
        name, _, value = word.text.partition("=")
        if ours := _KSERVE.get(argument(name), name):
            yield replace(word, text=f"{ours}={value}" if value else ours)


def _model_around(path: Sequence[yaml.Node], names: Sequence[str]) -> str | None:
    """Return the model that a field around the container names."""
    for mapping in reversed(path):
        fields = fields_of(mapping)
        for around in (fields, fields_of(fields.get("model"))):
            for name in names:
                if value := _scalar(around.get(name)):
                    return value.removeprefix("hf://")
    return None


def _environment(fields: Mapping[str, yaml.Node]) -> Iterator[tuple[str, str | None]]:
    """Yield the names and values of a container's environment that the file itself contains."""
    for node in filter(None, map(fields.get, ("env", "environment"))):
        yield from ((name, _scalar(one)) for name, one in fields_of(node).items())
        for one in node.value if isinstance(node, yaml.SequenceNode) else ():
            pair, (name, is_set, value) = fields_of(one), (_scalar(one) or "").partition("=")
            yield name, value if is_set else None
            yield _scalar(pair.get("name")) or "", _scalar(pair.get("value"))


def _scalar(node: yaml.Node | None) -> str | None:
    return str(node.value) if isinstance(node, yaml.ScalarNode) else None


def _mappings(
    node: yaml.Node, path: tuple[yaml.MappingNode, ...]
) -> Iterator[tuple[yaml.MappingNode, ...]]:
    """Yield the path to every mapping, outermost first."""
    if isinstance(node, yaml.MappingNode):
        path = (*path, node)
        yield path
    for part in parts_of(node):
        yield from _mappings(part, path)


def fields_of(node: yaml.Node | None) -> dict[str, yaml.Node]:
    """Return the values of a mapping by key; its own win over merged ones (`<<`)."""
    fields: dict[str, yaml.Node] = {}
    for key, value in node.value if isinstance(node, yaml.MappingNode) else ():
        if key.value == "<<":
            fields = {**fields_of(value), **fields}
        elif isinstance(key.value, str):
            fields[key.value] = value
    return fields


def parts_of(node: yaml.Node) -> list[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        return [part for pair in node.value for part in pair]
    return node.value if isinstance(node, yaml.SequenceNode) else []


def end_of(node: yaml.Node) -> int:
    """Return the end of its last character; a block's own end mark is where the next one begins."""
    parts = parts_of(node)
    if parts and isinstance(node, yaml.CollectionNode) and not node.flow_style:
        return end_of(parts[-1])
    mark = node.end_mark
    if getattr(node, "style", None) in ("|", ">"):
        return len(mark.buffer[: mark.pointer].rstrip()) if mark.buffer else mark.index
    return int(mark.index)
