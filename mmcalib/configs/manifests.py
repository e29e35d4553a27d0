"""Read the containers of Kubernetes manifests, compose files and charts."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

import yaml

from mmcalib.configs.commands import OTHERS, Command, Span, Unread, argument_of, mark_unknown
from mmcalib.configs.shell import ORPHANS, Script
from mmcalib.options.run import DERIVED_ARGUMENTS, KEPT_ARGUMENTS
from mmcalib.text import one_line, serve_option

_Path: TypeAlias = tuple[yaml.MappingNode, ...]
# Fields that may have the model's.
_AROUND: Final = ("model", "modelArtifacts", "model_loading_config")
# KServe's runtime handles these itself and passes the others on to vLLM.
_KSERVE: Final = {"model_id": "--model", "model_name": "--served-model-name", "backend": ""}
# Images of other engines, also with vLLM in their names.
_OTHERS: Final = re.compile(
    "guidellm|litellm|llama.?cpp|llama-swap|sglang|text-(generation|embeddings)|tensorrt|triton"
    "|ollama|nginx|postgres|redis|lmdeploy"
)
# Where KServe puts the model that `storageUri` names.
_MOUNTED: Final = "/mnt/models"
# Only a container of vLLM has these fields.
_SERVERS: Final = frozenset(("modelFormat", "modelURL", "engine_kwargs"))
_NULL: Final = "tag:yaml.org,2002:null"
# Kubernetes and compose reject numbers too, but only these change their meaning.
_NO_TEXT: Final = ("tag:yaml.org,2002:bool", _NULL)
_MOST_SCRIPTS: Final = 100
# Characters that a container's variables and templates may become.
_MOST_EXPANDED: Final = 1 << 22
# Arguments of KServe's services with those of their runtimes.
_MOST_JOINED: Final = 10_000
# Options that tell vLLM in an image of another name.
_OPTIONS: Final = DERIVED_ARGUMENTS.union(KEPT_ARGUMENTS, ("model",))
# Fields of `vllmConfig` in production-stack's chart.
_CHART: Final = (
    *("maxModelLen", "maxNumSeqs", "gpuMemoryUtilization", "tensorParallelSize", "dtype"),
    *("enableChunkedPrefill", "enablePrefixCaching"),
)


@dataclass(frozen=True, slots=True)
class _Form:
    """Fields of a container's command in order, its variables, its model's fields, and `unread`."""

    keys: tuple[str, ...]
    variable: re.Pattern[str]
    models: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()


# Kubernetes' variables, and templates that another program fills in.
_KUBELET: Final = re.compile(r"\$(?:\$|\((\w+)\)|\{[^{}]*\})|\{\{ *\.?(\w+) *\}\}|\{\{[^{}]*\}\}")
_VARIABLE: Final = re.compile(r"\$(?:\$|\{(\w+)(?::?-([^}]*))?\}|(\w+)|\{[^}]*\})")
_KUBERNETES: Final = _Form(
    ("command", "args"),
    _KUBELET,
    ("storageUri", "uri", "url", "model", "model_source", "model_id"),
    (
        *("envFrom", "runtime", "parallelism", "workerSpec", "lora_config", "runtime_env", *_CHART),
        # Of production-stack's chart.
        *("lmcacheConfig", "enableTool", "toolCallParser", "enableLoRA", "chatTemplate"),
    ),
)
_COMPOSE: Final = _Form(("entrypoint", "command"), _VARIABLE, (), ("env_file", "extends"))
# Scripts in files of other programs, as of SkyPilot or GitHub; a shell expands their variables,
# and the program fills in templates that name one of `env` or, as in Taskfiles, `vars`.
_USE: Final = re.compile(r"\$?\{\{\s*(?:\.|env\.|vars\.)?(\w+)\s*\}\}")
_SCRIPTS: Final = _Form((), _USE, (), ("file_mounts", "workdir"))
_VALUES: Final = replace(
    _KUBERNETES,
    keys=("command", "args", "extraArgs"),
    models=("modelURL", "model", "uri", "model_source", "model_id"),
)


def read_object(root: yaml.Node, text: str) -> list[Command] | None:
    """Return the servers of a Kubernetes object, compose file or chart; None for other YAML.

    Containers that only look like vLLM's count if no others do, and scripts if there are none.
    Raises OverflowError for too many scripts.
    """
    top, form, name = fields_of(root), _VALUES, _scalar(root, "metadata", "name") or ""
    mappings = [*_mappings(root, ())]
    named: list[tuple[str, tuple[yaml.Node, ...]]] = [(name, path) for path in mappings]
    if not top.keys().isdisjoint(("apiVersion", "kind")):
        form = _KUBERNETES
    elif "services" in top:
        form, services = _COMPOSE, fields_of(top["services"]).items()
        named = [(name, (node,)) for name, node in services]
    found = [one for name, path in named for one in _Container(form, text, path).read(name)]
    found = [one for one in found if not one.is_guess] or found
    if form is _VALUES or not found:
        found += _read_scripts(mappings, text, _VALUES.keys if found else ())
    return found or (None if form is _VALUES else [])


def join_runtimes(roots: Sequence[yaml.Node]) -> list[yaml.Node]:
    """Return the objects, with KServe's runtimes joined to the services that name them: arguments
    and variables of a service follow those of the runtime's container. Raises OverflowError.
    """
    named = [one for one in roots if (_scalar(one, "kind") or "").endswith("ServingRuntime")]
    runtimes = {_scalar(one, "metadata", "name"): one for one in named}
    used, left = set[int](), _MOST_JOINED
    for root in roots:
        model = _node_at(root, "spec", "predictor", "model")
        runtime = runtimes.get(_scalar(model, "runtime") or "")
        base = fields_of(next(iter(parts_of(_node_at(runtime, "spec", "containers"))), None))
        if runtime is None or not (isinstance(model, yaml.MappingNode) and base):
            continue
        used.add(id(runtime))
        own = fields_of(model)
        for name in {"args", "env"} & base.keys():
            if isinstance(own.get(name), yaml.SequenceNode):
                # Another service may have the same node, by an alias.
                own[name] = copy(own[name])
                own[name].value = [*parts_of(base[name]), *own[name].value]
                left -= len(own[name].value)
        if left < 0:
            raise OverflowError
        pairs = {**base, **own}.items()
        model.value = [(yaml.ScalarNode("", key), one) for key, one in pairs if key != "runtime"]
    return [root for root in roots if id(root) not in used]


def _read_scripts(mappings: Sequence[_Path], text: str, read: Sequence[str]) -> list[Command]:
    """Read texts that mention vLLM and are not `read` as scripts with the variables around them."""
    macros = fields_of(mappings[0][0]).get("macros") if mappings else None
    # An alias is the same node again.
    texts = {
        id(node): (*path, node)
        for path in mappings
        for key, part in path[-1].value
        for node in (part.value if isinstance(part, yaml.SequenceNode) else [part])
        if key.value not in read and path[-1] is not macros
    }
    mark = re.compile(r"vllm|\$\{" if macros else "vllm")
    paths = [one for one in texts.values() if " " in one[-1].value and mark.search(one[-1].value)]
    if len(paths) > _MOST_SCRIPTS:
        raise OverflowError
    return [server for path in paths for server in _Container(_SCRIPTS, text, path).read("")]


def inner_documents(root: yaml.Node) -> Iterator[yaml.Node]:
    """Yield the configuration of Ray Serve that a RayService has as text. Raises YAMLError."""
    text = _node_at(root, "spec", "serveConfigV2")
    if isinstance(text, yaml.ScalarNode):
        yield from yaml.compose_all("\n" * _line(text) + text.value, yaml.SafeLoader)


class _Container:
    """The innermost mapping of a path, which may be a container of vLLM, or a script in it."""

    def __init__(self, form: _Form, text: str, path: Sequence[yaml.Node]) -> None:
        self.form, self.text, self.path = form, text, path
        own = fields_of(path[-1])
        # Production-stack's chart has fields of its own, in the mapping inside its container's.
        self.chart = fields_of(own.get("vllmConfig")) if form is _VALUES else {}
        is_chart = path[1:] and fields_of(path[-2]).get("vllmConfig") is path[-1]
        self.fields = {} if is_chart else own | self.chart
        every = [*map(fields_of, path[:-1] if form is _SCRIPTS else ()), self.fields]
        self.environment, self.left = dict[str, str](), _MOST_EXPANDED
        pairs = (pair for one in path for pair in fields_of(fields_of(one).get("vars")).items())
        self.vars = {name: value for name, one in pairs if (value := _scalar(one)) is not None}
        if _scalar(path[0], "kind") == "ConfigMap":
            self.environment[OTHERS] = "may be set by the container that runs it"
        for name, value in (pair for fields in every for pair in _environment(fields)):
            outside = mark_unknown(f"${name}", "gets its value from elsewhere")
            self.environment[name] = outside if value is None else self._expand(value)

    def read(self, name: str) -> Iterator[Command]:
        """Yield the servers that it starts; the name is for a container without one."""
        own = [
            _span(word.text, node, "field")
            for name, node in ((key, self.chart[key]) for key in _CHART if key in self.chart)
            for word in _argument_words(re.sub("[A-Z]", r"_\g<0>", name).lower(), node)
        ]
        # Those of Ray Serve's LLMConfig.
        engine = fields_of(self.fields.get("engine_kwargs"))
        own += [word for key, node in engine.items() for word in _argument_words(key, node)]
        # KServe's LLMInferenceService has them in a variable.
        if more := self.environment.get("VLLM_ADDITIONAL_ARGS"):
            script = Script(more, {}, None, _line(self.path[-1]))
            own += [word for command in script.commands for word in command.words]
        unread = [Unread(_line(node), f"{what} is not read") for what, node in self._find_unread()]
        found = self._find_servers(own)
        # Several commands of one container's script are told apart by their lines.
        name = (_scalar(self.fields.get("name")) or name) if len(found) == 1 else ""
        model = _model_around(self.path, self.form.models)
        extent: tuple[int, int | None] = 0, None
        if found and not {"image", "repository"}.isdisjoint(self.fields):
            extent = self.path[-1].start_mark.index, end_of(self.path[-1])
        for one in found:
            words = [*_kserve_words(one.words)] if "modelFormat" in self.fields else one.words
            notes = [*unread, *one.unread]
            yield replace(one, words=words, unread=notes, name=name, model=model, extent=extent)

    def _find_unread(self) -> Iterator[tuple[str, yaml.Node]]:
        others = self.chart.keys() - {*_CHART, "extraArgs"}
        yield from ((f"vllmConfig.{key}", self.chart[key]) for key in sorted(others))
        places = [*map(fields_of, self.path)]
        yield from ((key, own[key]) for own in places for key in self.form.unread if key in own)

    def _find_servers(self, words: list[Span]) -> list[Command]:
        """Find them in the command line after these words, or in the script that a shell runs."""
        notes = list[Unread]()
        if self.form is _SCRIPTS:
            # Llama-swap runs no shell.
            is_swap = fields_of(self.path[-2]).get("cmd") is self.path[-1]
            return self._read_script(self.path[-1], is_one_line=is_swap).find_servers()
        items = [
            (node, one)
            for node in filter(None, map(self.fields.get, self.form.keys))
            for one in (node.value if isinstance(node, yaml.SequenceNode) else [node])
        ]
        for at, (node, one) in enumerate(items, 1):
            value, is_script = _scalar(one), words and re.fullmatch(r"-\w*c", words[-1].text)
            if is_script and words[0].text.endswith("sh") and value is not None:
                rest = [self._expand(_scalar(more) or "") for _, more in items[at:]]
                if rest and not re.search(r"\$\{?[@*\d]", value):
                    own = "the script uses none of the words after it"
                    notes.append(Unread(_line(items[at][1]), own))
                servers = self._read_script(one, positional=rest[1:]).find_servers()
                return [replace(server, unread=[*server.unread, *notes]) for server in servers]
            if one is node and value is not None:
                script = self._read_script(one, is_one_line=True)
                if len(script.commands) > 1:
                    return self._read_script(one).find_servers()
                words += [word for command in script.commands for word in command.words]
                notes += [note for note in script.notes if note.text != ORPHANS]
            else:
                shown = self.text[one.start_mark.index : end_of(one)]
                is_text = value is not None and one.tag not in _NO_TEXT
                text = self._expand(value or "") if is_text else mark_unknown(shown, "is no text")
                words.append(_span(text, one, "list" if is_flow(node) else "item"))
                if re.match(r"(--[\w.-]+|\S*vllm) +[\w-]", text):
                    notes.append(Unread(_line(one), f"{one_line(text)} is one word, not several"))
        image = _scalar(self.fields.get("image") or self.fields.get("repository")) or ""
        # The router of production-stack has arguments and an image of its own too.
        has_own = not _SERVERS.isdisjoint(self.fields) or (not image and "extraArgs" in self.fields)
        # Without a program of its own, it starts the image's.
        is_sure = has_own or ("vllm" in image and self.form.keys[0] not in self.fields)
        options = [argument_of(word.text) for word in words if word.text.startswith("--")]
        is_bare = any(word.text.startswith("--") for word in words[:1])
        is_guess = not is_sure and is_bare and _OPTIONS.isdisjoint(options)
        command = Command(words, notes, _line(self.path[-1]), self.environment, is_guess=is_guess)
        starts = "modelURL" in self.fields or (bool(words) and (is_sure or is_bare))
        # Another engine's image may run vLLM, but only if its command says so.
        return command.find_server(starts=starts and not _OTHERS.search(image))

    def _expand(self, text: str, *, is_script: bool = False) -> str:
        def value(match: re.Match[str]) -> str:
            if match[0] == "$$":
                return "$"
            name, *default = [group for group in match.groups() if group is not None] or [""]
            # Compose fills in its own variables, not the container's.
            own = {} if self.form is _COMPOSE else self.environment
            known = own if name in own else self.vars
            if name in known or default:
                found = known.get(name) or "".join(default)
                self.left -= len(found)
                if self.left < 0:
                    raise OverflowError
                return found
            # In a script it may be the shell's own; a template stays one.
            is_own = (is_script and self.form is not _COMPOSE) or "{{" in match[0]
            why = own.get(OTHERS, "is not set in the file")
            return match[0] if is_own else mark_unknown(match[0], why)

        return self.form.variable.sub(value, text)

    def _read_script(
        self, node: yaml.Node, *, is_one_line: bool = False, positional: Sequence[str] = ()
    ) -> Script:
        """Read a script; its words have places if the file spells them as YAML does."""
        style, line = getattr(node, "style", None) or "", _line(node)
        start, end = node.start_mark.index, end_of(node)
        if style in ("|", ">"):
            start = self.text.find("\n", start)
        elif style:
            start, end = start + 1, end - 1
        raw, value = self.text[start:end], self._expand(node.value, is_script=not is_one_line)
        if self.form is _COMPOSE and is_one_line and "{{" not in value:
            # Compose only splits words: it has no comments, and has filled in its variables.
            with suppress(ValueError):
                value = shlex.join(shlex.split(value.replace("\\\n", " ")))
        # On one line, a line break is only a blank.
        value = re.sub(r"(?m)^#.*|\\?\n", " ", value) if is_one_line else value
        raw = raw.replace("\n", " ") if is_one_line or style != "|" else raw
        script = Script(raw, self.environment, start, line, style, None, positional)
        line += style in ("|", ">")
        plain = Script(value, self.environment, None, line, "|", None, positional)
        texts = ([[w.text for w in c.words] for c in one.commands] for one in (script, plain))
        return script if next(texts) == next(texts) else plain


def _line(node: yaml.Node) -> int:
    return node.start_mark.line + 1


def is_flow(node: yaml.Node) -> bool:
    return isinstance(node, yaml.CollectionNode) and bool(node.flow_style)


def _span(text: str, node: yaml.Node, form: str) -> Span:
    return Span(text, node.start_mark.index, end_of(node), _line(node), form)


def _argument_words(name: str, node: yaml.Node) -> list[Span]:
    try:
        value = yaml.SafeLoader("").construct_object(node, deep=True)
    except (yaml.YAMLError, ValueError):
        value = mark_unknown("it", "is no value")
    words = [] if value is None else serve_option(name, value)
    return [Span(word, line=_line(node)) for word in words]


def _kserve_words(words: Sequence[Span]) -> Iterator[Span]:
    after = [*(word.text for word in words[1:]), ""]
    for word, following in zip(words, after, strict=True):
        value = following if word.text == "--model" else word.text.removeprefix("--model=")
        if value == _MOUNTED:
            continue
        name, _, value = word.text.partition("=")
        if ours := _KSERVE.get(argument_of(name), name):
            yield replace(word, text=f"{ours}={value}" if value else ours)


def _model_around(path: Sequence[yaml.Node], names: Sequence[str]) -> str | None:
    """Return the model that a field around the container names."""
    around = (fields_of(mapping) for mapping in reversed(path))
    parts = ((own, *map(fields_of, map(own.get, _AROUND))) for own in around)
    fields = (part for own in parts for part in own)
    values = (_scalar(own.get(name)) for own in fields for name in names)
    return next((value.removeprefix("hf://") for value in values if value), None)


def _environment(fields: Mapping[str, yaml.Node]) -> Iterator[tuple[str, str | None]]:
    """Yield the names and values of a container's environment that the file itself contains."""
    for one in filter(None, map(fields.get, ("envFrom", "env_file"))):
        yield OTHERS, f"may be set by line {_line(one)}, which is not read"
    for node in filter(None, map(fields.get, ("env", "envs", "environment", "macros"))):
        pairs = fields_of(node).items()
        yield from ((name, None if one.tag == _NULL else _scalar(one)) for name, one in pairs)
        for one in node.value if isinstance(node, yaml.SequenceNode) else ():
            name, is_set, value = (_scalar(one) or _scalar(one, "name") or "").partition("=")
            yield name, value if is_set else _scalar(one, "value")


def _scalar(node: yaml.Node | None, *names: str) -> str | None:
    node = _node_at(node, *names)
    return str(node.value) if isinstance(node, yaml.ScalarNode) else None


def _mappings(node: yaml.Node, path: _Path) -> Iterator[_Path]:
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


def _node_at(node: yaml.Node | None, *names: str) -> yaml.Node | None:
    """Return what mappings inside each other have under these names."""
    for name in names:
        node = fields_of(node).get(name)
    return node


def parts_of(node: yaml.Node | None) -> list[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        return [part for pair in node.value for part in pair]
    return node.value if isinstance(node, yaml.SequenceNode) else []


def end_of(node: yaml.Node) -> int:
    """Return the end of its last character; a block's own end mark is where the next one begins."""
    parts = parts_of(node)
    if parts and not is_flow(node):
        return end_of(parts[-1])
    mark = node.end_mark
    if getattr(node, "style", None) in ("|", ">"):
        return len(mark.buffer[: mark.pointer].rstrip()) if mark.buffer else mark.index
    return int(mark.index)
