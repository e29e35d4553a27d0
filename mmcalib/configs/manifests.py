"""Read the containers of Kubernetes manifests, compose files and charts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import yaml

from mmcalib.configs.commands import Command, Form, Span, argument, mark_unknown
from mmcalib.configs.shell import ORPHANS, Script
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
    top, form = fields_of(root), _VALUES
    name = _scalar(fields_of(top.get("metadata")).get("name")) or ""
    paths: list[tuple[str, tuple[yaml.Node, ...]]] = [(name, path) for path in _mappings(root, ())]
    if not top.keys().isdisjoint(("apiVersion", "kind")):
        form = _KUBERNETES
    elif "services" in top:
        form, services = _COMPOSE, fields_of(top["services"])
        paths = [(name, (node,)) for name, node in services.items() if fields_of(node)]
    containers = [_Container(form, text, path, name) for name, path in paths]
    is_any_sure = any(one.found and one.is_sure for one in containers)
    found = [c for one in containers if one.is_sure or not is_any_sure for c in one.found]
    return found or (None if form is _VALUES else [])


class _Container:
    """The servers that a container starts, and whether they are vLLM's for sure."""

    def __init__(self, form: _Form, text: str, path: Sequence[yaml.Node], name: str) -> None:
        self.form, self.text, self.line = form, text, path[-1].start_mark.line + 1
        self.fields, around = fields_of(path[-1]), fields_of(path[-2]) if path[1:] else {}
        # Production-stack's chart has fields of its own, in the mapping inside its container's.
        vllm = fields_of(self.fields.get("vllmConfig")) if form is _VALUES else {}
        self.fields = {} if around.get("vllmConfig") is path[-1] else self.fields | vllm
        every = _environment(self.fields)
        self.environment = {name: value for name, value in every if value is not None}
        unread = [
            f"line {node.start_mark.line + 1}: vllmConfig.{key} is not read"
            for key, node in vllm.items()
            if key not in (*_CHART, "extraArgs")
        ]
        image = _scalar(self.fields.get("image") or self.fields.get("repository")) or ""
        # Without a program of its own, it starts the image's.
        self.is_sure = "vllm" in image and form.keys[0] not in self.fields
        self.is_sure = self.is_sure or not _SERVERS.isdisjoint(self.fields)
        own = [word for key in _CHART for word in _chart_words(key, vllm.get(key))]
        found = self._find_servers(own)
        self.found = [
            replace(
                one,
                words=[*_kserve_words(one.words)] if "modelFormat" in self.fields else one.words,
                unread=[*unread, *one.unread],
                # Several commands of one container's script are told apart by their lines.
                name=(_scalar(self.fields.get("name")) or name) if len(found) == 1 else "",
                model=_model_around(path, form.models),
            )
            for one in found
        ]

    def _find_servers(self, words: list[Span]) -> list[Command]:
        """Find them in the command line after these words, or in the script that a shell runs."""
        notes = list[str]()
        for node in filter(None, map(self.fields.get, self.form.keys)):
            is_flow = getattr(node, "flow_style", None)
            glue = ", " if is_flow else f"\n{' ' * node.start_mark.column}- "
            for one in node.value if isinstance(node, yaml.SequenceNode) else [node]:
                value, is_script = _scalar(one), words and re.fullmatch(r"-\w*c", words[-1].text)
                if is_script and words[0].text.endswith("sh") and value is not None:
                    self.is_sure = True
                    return self._read_script(one).find_servers()
                if one is node and value is not None:
                    script = self._read_script(one, is_one_line=True)
                    if len(script.commands) > 1:
                        self.is_sure = True
                        return self._read_script(one).find_servers()
                    words += [word for command in script.commands for word in command.words]
                    notes += script.notes
                    continue
                value = mark_unknown("it", "is no text") if value is None else self._expand(value)
                words.append(_span(value, one, "list" if is_flow else "item", glue))
        notes = [note for note in notes if not note.endswith(ORPHANS)]
        is_guess = any(word.text.startswith("--") for word in words[:1])
        starts = bool(words) and (self.is_sure or is_guess)
        self.is_sure = self.is_sure or not is_guess
        return Command(words, notes, self.line, self.environment).find_server(starts=starts)

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

    def _read_script(self, node: yaml.Node, *, is_one_line: bool = False) -> Script:
        """Read a script; its words have places if the file spells them as YAML does."""
        quote, line = getattr(node, "style", None) or "", node.start_mark.line + 1
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
    around = (fields_of(mapping) for mapping in reversed(path))
    fields = (part for own in around for part in (own, fields_of(own.get("model"))))
    values = (_scalar(own.get(name)) for own in fields for name in names)
    return next((value.removeprefix("hf://") for value in values if value), None)


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
