"""Read the containers of Kubernetes manifests, compose files and charts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import yaml

from mmcalib.configs.commands import Command, find_command, find_releases, find_script_commands
from mmcalib.configs.shell import Script, read_script
from mmcalib.configs.words import Form, Span, argument, mark_unknown
from mmcalib.results.engine_yaml import serve_option

# What a kubelet and compose expand before the container sees it.
_KUBERNETES: Final = re.compile(r"\$(?:\$|\((\w+)\))")
_COMPOSE: Final = re.compile(r"\$(?:\$|\{(\w+)(?::?-([^}]*))?\}|(\w+)|\{[^}]*\})")
# KServe's runtime handles these itself and passes the others on to vLLM.
_KSERVE: Final = {"model_id": "--model", "model_name": "--served-model-name", "backend": ""}
# Only a container of vLLM has these fields.
_SERVERS: Final = frozenset(("modelFormat", "modelURL", "extraArgs"))
# Fields of `vllmConfig` in production-stack's chart.
_CHART: Final = {
    "maxModelLen": "max_model_len",
    "maxNumSeqs": "max_num_seqs",
    "gpuMemoryUtilization": "gpu_memory_utilization",
    "tensorParallelSize": "tensor_parallel_size",
    "dtype": "dtype",
    "enableChunkedPrefill": "enable_chunked_prefill",
    "enablePrefixCaching": "enable_prefix_caching",
}


@dataclass(frozen=True, slots=True)
class _Container:
    """A container's fields, those that hold its command line in order, and their language."""

    fields: Mapping[str, yaml.Node]
    keys: Sequence[str]
    variable: re.Pattern[str]
    text: str
    line: int
    name: str = ""
    first_words: Sequence[Span] = ()
    model: str | None = None

    def find_commands(self, *, is_guess: bool) -> list[Command]:
        """Return the servers that it starts; flags alone are one if that `is_guess` enough."""
        environment = dict(_environment(self.fields))
        words, script = self._read_words(environment)
        tag = f"{_scalar(self.fields.get('repository'))}:{_scalar(self.fields.get('tag'))}"
        image = _scalar(self.fields.get("image")) or tag
        if script is not None:
            value = self._expand(script.value, environment, is_script=True)
            found = find_script_commands(self._read_scalar(script, value, environment))
        else:
            own = [*self.first_words, *words]
            # Without a program of its own, it starts the image's.
            starts = "vllm" in image and self.keys[0] not in self.fields
            starts = starts or not _SERVERS.isdisjoint(self.fields)
            starts = starts or (is_guess and any(word.text[:2] == "--" for word in own[:1]))
            command = find_command(own, environment, self.line, starts=starts and bool(own))
            found = [command] if command else []
        return [
            replace(
                command,
                words=list(_kserve_words(command.words))
                if "modelFormat" in self.fields
                else command.words,
                # Several commands of one container's script are told apart by their lines.
                name=self.name if len(found) == 1 else "",
                model=self.model,
                environment={**environment, **command.environment},
                releases=[*find_releases([image]), *command.releases],
            )
            for command in found
        ]

    def _read_words(
        self, environment: Mapping[str, str]
    ) -> tuple[list[Span], yaml.ScalarNode | None]:
        """Return the words of the command line, or the script that it hands to a shell."""
        words: list[Span] = []
        for node in (self.fields.get(key) for key in self.keys):
            if isinstance(node, yaml.SequenceNode):
                glue = ", " if node.flow_style else f"\n{' ' * node.start_mark.column}- "
                form: Form = "list" if node.flow_style else "item"
                for one in node.value:
                    value = _scalar(one)
                    is_script = bool(_script_place(words))
                    text = self._expand(value or "", environment, is_script=is_script)
                    text = mark_unknown("it", "is no text") if value is None else text
                    place = one.start_mark.index, end_of(one), one.start_mark.line + 1
                    words.append(Span(text, *place, form, glue, node=one))
            elif isinstance(node, yaml.ScalarNode) and _script_place(words):
                words.append(Span(node.value, node=node))
            elif isinstance(node, yaml.ScalarNode):
                # Here a line break is only a blank.
                value = self._expand(node.value, environment).replace("\n", " ")
                script = self._read_scalar(node, value, environment, is_one_line=True)
                if not script.commands or len(script.commands) > 1:
                    return [], node if script.commands else None
                words += script.commands[0].words
        if at := _script_place(words):
            return [], words[at].node if len(words) > at else None
        return words, None

    def _expand(self, text: str, environment: Mapping[str, str], *, is_script: bool = False) -> str:
        def value(match: re.Match[str]) -> str:
            if match[0] == "$$":
                return "$"
            name, *default = [group for group in match.groups() if group is not None] or [""]
            if name in environment or default:
                return environment.get(name) or "".join(default)
            # In a script it may be the shell's own.
            return match[0] if is_script else mark_unknown(match[0], "is not set in the file")

        return self.variable.sub(value, text)

    def _read_scalar(
        self,
        node: yaml.ScalarNode,
        value: str,
        environment: Mapping[str, str],
        *,
        is_one_line: bool = False,
    ) -> Script:
        """Read a script; its words have places if the file spells them as YAML does."""
        quote, line = node.style or "", node.start_mark.line + 1
        start, end = node.start_mark.index, end_of(node)
        if quote in ("|", ">"):
            start = self.text.find("\n", start)
        elif quote:
            start, end = start + 1, end - 1
        raw = self.text[start:end]
        raw = raw.replace("\n", " ") if is_one_line or quote != "|" else raw
        script = read_script(raw, environment, offset=start, line=line)
        first_line = line + (quote in ("|", ">"))
        plain = read_script(value, environment, offset=None, line=first_line)
        if _texts(script) != _texts(plain):
            return plain
        commands = tuple(
            replace(one, words=tuple(replace(word, quote=quote) for word in one.words))
            for one in script.commands
        )
        return replace(script, commands=commands)


def _texts(script: Script) -> list[list[str]]:
    return [[word.text for word in command.words] for command in script.commands]


def _script_place(words: Sequence[Span]) -> int:
    """Return the place of the script if the words are `sh -c`, 0 otherwise."""
    flags = [at for at, word in enumerate(words[:4]) if re.fullmatch(r"-\w*c", word.text)]
    return flags[0] + 1 if flags and words[0].text.endswith("sh") else 0


def read_kubernetes(root: yaml.Node, text: str) -> list[Command] | None:
    """Read the containers of an object, KServe's among them; None if it is no such object."""
    if fields_of(root).keys().isdisjoint(("apiVersion", "kind")):
        return None
    metadata = fields_of(fields_of(root).get("metadata"))
    containers = list[_Container]()
    for path in _mappings(root, ()):
        fields, line = fields_of(path[-1]), path[-1].start_mark.line + 1
        name = _scalar(fields.get("name") or metadata.get("name")) or ""
        model = _model_around(path, ("storageUri", "uri", "url", "model"))
        keys = ("command", "args")
        containers.append(_Container(fields, keys, _KUBERNETES, text, line, name, model=model))
    return _find_all(containers)


def read_compose(root: yaml.Node, text: str) -> list[Command] | None:
    """Read the services of a compose file; None if it has none."""
    services = fields_of(root).get("services")
    if services is None:
        return None
    keys = ("entrypoint", "command")
    return _find_all(
        _Container(fields_of(node), keys, _COMPOSE, text, node.start_mark.line + 1, name)
        for name, node in fields_of(services).items()
    )


def read_chart(root: yaml.Node, text: str) -> list[Command] | None:
    """Read the engines of a chart's values; None if there are none."""
    containers, unread = list[_Container](), dict[int, list[str]]()
    for path in _mappings(root, ()):
        fields, around = fields_of(path[-1]), fields_of(path[-2] if len(path) > 1 else None)
        own = dict(_chart_words(fields)) if "vllmConfig" in around else {}
        if "vllmConfig" in around:
            line = path[-1].start_mark.line + 1
            unread[line] = [
                f"line {node.start_mark.line + 1}: vllmConfig.{key} is not read"
                for key, node in fields.items()
                if key not in (*own, "extraArgs")
            ]
            fields = {**around, **fields}
        elif "vllmConfig" in fields:
            continue
        containers.append(
            _Container(
                fields,
                ("command", "args", "extraArgs"),
                _KUBERNETES,
                text,
                path[-1].start_mark.line + 1,
                _scalar(fields.get("name")) or "",
                [word for words in own.values() for word in words],
                _model_around(path, ("modelURL", "model")),
            )
        )
    found = _find_all(containers)
    return [replace(c, unread=[*unread.get(c.line, ()), *c.unread]) for c in found] or None


def _find_all(containers: Iterable[_Container]) -> list[Command]:
    """Return the servers; those that only look like one if there are no others."""
    every = list(containers)
    sure = [command for one in every for command in one.find_commands(is_guess=False)]
    return sure or [command for one in every for command in one.find_commands(is_guess=True)]


def _kserve_words(words: Sequence[Span]) -> Iterator[Span]:
    for word in words:
        name, _, value = word.text.partition("=")
        if ours := _KSERVE.get(argument(name), name):
            yield replace(word, text=f"{ours}={value}" if value else ours)


def _chart_words(fields: Mapping[str, yaml.Node]) -> Iterator[tuple[str, list[Span]]]:
    for key, name in _CHART.items():
        node = fields.get(key)
        if isinstance(node, yaml.ScalarNode):
            place = node.start_mark.index, end_of(node), node.start_mark.line + 1
            is_bool = node.tag == "tag:yaml.org,2002:bool"
            words = serve_option(name, yaml.safe_load(node.value) if is_bool else node.value)
            yield key, [Span(word, *place, "field") for word in words]


def _model_around(path: Sequence[yaml.Node], names: Sequence[str]) -> str | None:
    """Return the model that a field around the container names."""
    for mapping in reversed(path):
        fields = fields_of(mapping)
        for around in (fields, fields_of(fields.get("model"))):
            for name in names:
                if value := _scalar(around.get(name)):
                    return value.removeprefix("hf://")
    return None


def _environment(fields: Mapping[str, yaml.Node]) -> Iterator[tuple[str, str]]:
    """Yield the names and values of a container's environment that the file itself contains."""
    for key in ("env", "environment"):
        node = fields.get(key)
        for name, one in fields_of(node).items():
            if (value := _scalar(one)) is not None:
                yield name, value
        for one in node.value if isinstance(node, yaml.SequenceNode) else ():
            pair = fields_of(one)
            named, value = _scalar(pair.get("name")), _scalar(pair.get("value"))
            if named is not None and value is not None:
                yield named, value
            elif "=" in (whole := _scalar(one) or ""):
                yield whole.partition("=")[0], whole.partition("=")[2]


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
