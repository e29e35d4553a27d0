"""Read a user's vLLM configuration in any of its forms, and write tuned values into it.

A form is a file for `vllm serve --config`, a Kubernetes manifest, a compose file, Helm values, a
shell script, or flags alone.
"""

from __future__ import annotations

import difflib
import json
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

import yaml

from mmcalib.engine.messages import ParseServeConfig, ServeConfig
from mmcalib.engine.vllm_config import split_model
from mmcalib.errors import UsageError
from mmcalib.files import read_document
from mmcalib.options.run import DERIVED_ARGUMENTS, KEPT_ARGUMENTS
from mmcalib.results.engine_yaml import serve_option, yaml_entry

# vLLM's parser requires a model, and accepts any name.
PLACEHOLDER_MODEL: Final = "unnamed"
# A configuration with every option of `vllm serve` has some 300 lines.
_MAX_BYTES: Final = 1 << 18
# Values after YAML aliases are expanded, as vLLM expands them.
_MAX_VALUES: Final = 100_000
_MAX_DEPTH: Final = 50

# Keys of manifests, compose files and charts that hold a container's command line, in its order.
_COMMAND_KEYS: Final = ("entrypoint", "command", "args", "extraArgs")
# Options that have their own field in production-stack's chart.
_CHART: Final = {
    "maxModelLen": "max_model_len",
    "maxNumSeqs": "max_num_seqs",
    "gpuMemoryUtilization": "gpu_memory_utilization",
    "tensorParallelSize": "tensor_parallel_size",
    "dtype": "dtype",
    "enableChunkedPrefill": "enable_chunked_prefill",
    "enablePrefixCaching": "enable_prefix_caching",
}
# KServe's runtime handles these itself and passes the others on to vLLM.
_KSERVE: Final = {"model_id": "--model", "model_name": "--served-model-name", "backend": ""}
# Fields around a container that name its model.
_MODELS: Final = ("modelURL", "storageUri", "uri", "model")
_SERVER: Final = "vllm.entrypoints.openai.api_server"
_PROGRAMS: Final = ("vllm", "vllm.entrypoints.cli.main")
# A container image of vLLM, and the options of `docker run` that take no value and may precede it.
_IMAGE: Final = re.compile(
    r"(?:[\w.-]+(?::\d+)?/)?(?:[^\s:=]+/)*[\w.-]*vllm[\w.-]*(?:[:@][\w.:-]+)?"
)
_SWITCHES: Final = re.compile(
    r"--?[\w-]+=.*|-[itdP]+|--(?:rm|init|detach|interactive|tty|privileged)"
)
_OF_VLLM: Final = re.compile(r"VLLM_|PYTORCH_(?:CUDA_)?ALLOC_CONF$")
_ASSIGNMENT: Final = re.compile(r"[A-Za-z_]\w*=")
_CONTAINERS: Final = ("docker", "podman", "nerdctl")
_STARTERS: Final = (*_CONTAINERS, "kubectl", "env", "sudo", "exec", "nohup", "uv", "uvx", "vllm")
_WORD: Final = re.compile(
    r"""\\\n|&&|\|\||[;|&\n]|(?:[^\s"'\\;|&]|\\[^\n]|"(?:\\.|[^"\\])*"|'[^']*')+""", re.S
)
_ENDS: Final = frozenset({"&&", "||", ";", "|", "&", "\n"})
_VARIABLE: Final = re.compile(r"\$(?:\$|\((\w+)\)|\{(\w+)(?::?-([^}]*))?\}|(\w+))")

# Characters around a word in which its line is searched.
_NEAR: Final = 1_000

Form = Literal["entry", "item", "list", "shell", "field"]
# Text before an option that is removed together with it.
_BEFORE: Final[Mapping[Form, str]] = {
    "entry": r"\n[^\n]*\Z",
    "item": r"\n\s*-\s*\Z",
    "list": r",\s*\Z",
    "shell": r"\s*(\\\n)?\s*\Z",
    "field": r"\n\s*\w+:\s*\Z",
}


@dataclass(frozen=True, slots=True)
class Span:
    """A word, or an option (named by its argument) with its values, and its place in the text.

    The place is -1 if the text spells the word differently. `glue` separates words; `quote` is
    YAML's quote around them. A shell splits the value of a word that `is_variable`.
    """

    text: str
    start: int = -1
    end: int = -1
    form: Form = "shell"
    glue: str = " "
    quote: str = "|"
    node: yaml.ScalarNode | None = None
    is_variable: bool = False

    def spell(self, name: str, value: Any) -> str:
        """Spell an option the way this place requires."""
        if self.form == "field":
            return json.dumps(value)
        if self.form == "entry":
            return yaml_entry(name, value).rstrip("\n")
        words = serve_option(name, value)
        if self.form != "shell":
            return self.glue.join(map(_yaml_word, words))
        if not self.quote:
            # A colon before a space would end a plain scalar.
            dumps = partial(json.dumps, separators=(",", ":"))
            words = [w if w[0] not in "[{" else dumps(json.loads(w)) for w in words]
        line = shlex.join(words)
        return {"'": line.replace("'", "''"), '"': json.dumps(line)[1:-1]}.get(self.quote, line)

    def make_addition(self, text: str, more: Mapping[str, Any]) -> tuple[int, int, str]:
        """Return the edit (start, end, text) that adds these options after this one."""
        line_ends = text.find("\n", self.end) if self.form in ("entry", "item", "field") else -1
        at = self.end if self.form in ("list", "shell") else len(text)
        at = at if line_ends < 0 else line_ends
        if self.form == "field":
            words = [word for name, value in more.items() for word in serve_option(name, value)]
            indent = re.search(r" *(?=[^\n ][^\n]*\Z)", text[: self.start])
            listed = ", ".join(map(_yaml_word, words))
            return at, at, f"\n{indent[0] if indent else ''}extraArgs: [{listed}]"
        return at, at, "".join(self.glue + self.spell(*option) for option in more.items())


@dataclass(frozen=True, slots=True)
class WrittenConfiguration:
    """A configuration of `vllm serve` as written, before any release parses it.

    It is either the `config` file that vLLM itself reads, with its `settings`, or the flags
    `spell` in another form. The user's `flags` win over both. `spans` are places in `text`.
    `environment` names the variables of vLLM and of PyTorch's allocator that it sets.
    """

    source: Path | None = None
    text: str = ""
    model: str | None = None
    config: Path | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    file_flags: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    spans: tuple[Span, ...] = ()
    environment: tuple[str, ...] = ()

    def environment_notes(self, own: Mapping[str, str]) -> Iterator[str]:
        """Name the file's variables of vLLM that are not in the `own` environment."""
        unset = [name for name in self.environment if name not in own]
        if unset:
            yield f"{self.source} sets {', '.join(unset)}: export the same here to apply them"

    @property
    def model_name(self) -> str | None:
        return self.model or str(self.settings.get("model") or "") or None

    @property
    def parse_request(self) -> ParseServeConfig:
        """Return the request for vLLM's parser, with the model that it requires first."""
        is_in_file = self.model is None and "model" in self.settings
        model = () if is_in_file else (self.model or PLACEHOLDER_MODEL,)
        path = None if self.config is None else str(self.config)
        return ParseServeConfig(path, (*model, *self.flags), self.file_flags)

    def tune_text(self, engine_args: Mapping[str, Any], read: Mapping[str, Any]) -> str:
        """Return the text with mmcalib's arguments replaced; `read` are the values before."""
        text, done = self.text, set[str]()
        edits: list[tuple[int, int, str]] = []
        for span in self.spans:
            name = span.text
            if name not in DERIVED_ARGUMENTS or engine_args.get(name) == read.get(name):
                continue
            if name in KEPT_ARGUMENTS and name not in engine_args:
                continue
            if name in engine_args and name not in done:
                edits.append((span.start, span.end, span.spell(name, engine_args[name])))
            else:
                near = max(0, span.start - _NEAR)
                before = re.search(_BEFORE[span.form], text[near : span.start])
                edits.append((near + before.start() if before else span.start, span.end, ""))
            done.add(name)
        more = {
            name: value
            for name, value in engine_args.items()
            if name not in done and name != "model" and value != read.get(name)
        }
        if more and self.spans:
            # A chart has few fields of its own; other options go to its list of arguments.
            last = max(self.spans, key=lambda span: (span.form != "field", span.end))
            edits.append(last.make_addition(text, more))
        for start, end, new in sorted(edits, reverse=True):
            text = text[:start] + new + text[end:]
        return text

    def diff(self, engine_args: Mapping[str, Any], read: Mapping[str, Any]) -> str:
        name = str(self.source) if self.spans and self.source else "vllm serve"
        written = self if self.spans else as_command(self)
        old, new = (t.splitlines() for t in (written.text, written.tune_text(engine_args, read)))
        lines = difflib.unified_diff(old, new, name, name, "yours", "tuned", lineterm="")
        return "".join(f"{line}\n" for line in lines)


def read_configuration(
    config: Path | None, flags: Sequence[str] = (), model: str | None = None
) -> WrittenConfiguration:
    """Combine file, flags and model. The flags may be a whole command, or name the file.

    Raises UsageError if the file cannot be read, or if the file or command does not start vLLM.
    """
    flags = extract_serve_flags(flags)
    if config is None and flags and flags[0].endswith((".yaml", ".yml", ".sh")):
        config, flags = Path(flags[0]), flags[1:]
    if config is None and "--config" in flags[:-1]:
        at = flags.index("--config")
        config, flags = Path(flags[at + 1]), [*flags[:at], *flags[at + 2 :]]
    model, flags = split_model(model, flags)
    written = WrittenConfiguration(config, "", model, flags=tuple(flags))
    if config is None:
        return as_command(written)
    text, documents = _read(config)
    written = replace(written, text=text)
    commands = [command for root in documents for command in _commands(root, text)]
    if not commands and not (documents and isinstance(documents[0], yaml.MappingNode)):
        environment = dict[str, str]()
        words = list(_expand(_shell_words(text, script=True), environment))
        script, starts = _after_vllm_serve(words)
        commands = [_Command(script, None, environment)] if starts else []
    if len(commands) > 1:
        raise UsageError(
            f"--config {config} has {len(commands)} containers that start vLLM",
            hint="pass a file with only one of them",
        )
    if commands:
        return _from_command(written, commands[0])
    if any("kind" in _fields(root) or "services" in _fields(root) for root in documents):
        raise UsageError(
            f"--config {config} has no container with vLLM's flags in command or args",
            hint="mmcalib ... -- followed by the flags of vllm serve",
        )
    return _from_vllm_file(written, documents)


def extract_serve_flags(words: Sequence[str]) -> list[str]:
    """Find the words of `vllm serve` in a pasted command. Raises UsageError for other programs."""
    # A line continuation that a blank or nothing follows arrives as a word of its own.
    pasted = [word for word in words if not word or word.strip("\\ \t\r\n")]
    if len(pasted) == 1 and re.search(r"\s-", pasted[0]):
        text = re.sub(r"\\[ \t]*\r?\n", " ", pasted[0]).strip()
        pasted = [word.text for word in _shell_words(text, script=True)]
    place = _serve_slice(pasted)
    pasted = pasted[place or slice(None)]
    while place is None and pasted and _ASSIGNMENT.match(pasted[0]):
        del pasted[0]
    first = pasted[0] if pasted else ""
    if first and (Path(first).name in _STARTERS or re.match(r"(.*/)?python[\d.]*$", first)):
        raise UsageError(
            f"{first} ... does not start vllm serve as far as mmcalib can tell",
            hint="after --, type only the flags of vllm serve",
        )
    return pasted


def as_command(of: WrittenConfiguration) -> WrittenConfiguration:
    lines = [["vllm", "serve", *([of.model] if of.model else [])]]
    for word in (*of.file_flags, *of.flags):
        if word.startswith("-"):
            lines.append([])
        lines[-1].append(word)
    text = " \\\n    ".join(map(shlex.join, lines)) + "\n"
    # JSON stays quoted, on its own line.
    spans = _spans([replace(w, glue=" \\\n    ") for w in _shell_words(text)])
    return replace(of, text=text, spans=tuple(spans))


def reject_unsafe_settings(parsed: ServeConfig, path: Path | None) -> ServeConfig:
    """Return it unchanged. Raises UsageError if the file could make vLLM run or write something."""
    if parsed.unsafe_settings:
        name = parsed.unsafe_settings[0].partition(".")[0]
        raise UsageError(
            f"--config {path} has settings that make vLLM import, run, write or connect: "
            f"{', '.join(parsed.unsafe_settings)}",
            hint="remove them, or pass them yourself as flags: mmcalib ... -- "
            + shlex.join(serve_option(name, parsed.values[name])),
        )
    return parsed


@dataclass(frozen=True, slots=True)
class _Command:
    """The words after `vllm serve` in a container or script, and what is set around them."""

    words: Sequence[Span]
    model: str | None
    environment: Mapping[str, str]


def _from_command(written: WrittenConfiguration, command: _Command) -> WrittenConfiguration:
    words = command.words
    texts = [word.text for word in words]
    if any(text.partition("=")[0] == "--config" for text in texts):
        raise UsageError(
            f"--config {written.source} starts vLLM with another --config file",
            hint="pass that file with --config",
        )
    own_model, flags = split_model(None, texts)
    has_places = all(word.start >= 0 for word in words)
    return replace(
        written,
        model=written.model or own_model or command.model,
        file_flags=tuple(flags),
        spans=tuple(_spans(words)) if has_places else (),
        environment=tuple(filter(_OF_VLLM.match, command.environment)),
    )


def _from_vllm_file(
    written: WrittenConfiguration, roots: Sequence[yaml.Node]
) -> WrittenConfiguration:
    """Read a file for vLLM's own --config; vLLM reports the faults of one that cannot be read."""
    try:
        settings = yaml.safe_load(written.text)
    except (yaml.YAMLError, ValueError, OverflowError):
        settings = None
    if not isinstance(settings, dict):
        return replace(written, config=written.source)
    text, root = written.text, roots[0]
    if isinstance(root, yaml.CollectionNode) and root.flow_style:
        text = yaml.safe_dump(settings, sort_keys=False)
        root = yaml.compose(text, yaml.SafeLoader) or root
    spans = tuple(
        Span(_argument(str(key.value)), key.start_mark.index, _end(value), "entry", "\n", "")
        for key, value in root.value
    )
    keys = {str(key): value for key, value in settings.items()}
    return replace(written, text=text, config=written.source, settings=keys, spans=spans)


def _commands(root: yaml.Node, text: str) -> list[_Command]:
    """Find the command of each container that names vLLM; if none does, of those with flags."""
    of_vllm, others = list[_Command](), list[_Command]()
    for path in _mappings(root, ()):
        fields = _fields(path[-1])
        environment = dict(_environment(fields))
        words, starts = _after_vllm_serve(_container_words(fields, text, environment))
        # vLLM's own file has `dtype` too, so only `modelURL` around it makes a chart.
        is_chart = any("modelURL" in _fields(mapping) for mapping in path)
        chart = _CHART if is_chart or fields.keys() & (_CHART.keys() - {"dtype"}) else {}
        chart_words = [
            Span(word, node.start_mark.index, _end(node), "field")
            for key, name in chart.items()
            if isinstance(node := fields.get(key), yaml.ScalarNode)
            for word in serve_option(name, yaml.safe_load(node.value))
        ]
        words = [*chart_words, *words]
        if "modelFormat" in fields:
            starts, parts = True, [(word, *word.text.partition("=")) for word in words]
            words = [
                replace(word, text=f"{ours}={value}" if value else ours)
                for word, name, _, value in parts
                if (ours := _KSERVE.get(_argument(name), name))
            ]
        image = fields.get("image")
        starts |= isinstance(image, yaml.ScalarNode) and "vllm" in image.value
        starts |= "extraArgs" in fields
        if any(word.text.startswith("--") for word in words) or (words and starts):
            command = _Command(words, _model_around(path), environment)
            (of_vllm if starts else others).append(command)
    return of_vllm or others


def _container_words(
    fields: Mapping[str, yaml.Node], text: str, environment: dict[str, str]
) -> list[Span]:
    words: list[Span] = []
    for name in _COMMAND_KEYS:
        node = fields.get(name)
        if isinstance(node, yaml.SequenceNode):
            glue = ", " if node.flow_style else f"\n{' ' * node.start_mark.column}- "
            form: Form = "list" if node.flow_style else "item"
            words += [
                Span(n.value, n.start_mark.index, _end(n), form, glue, node=n)
                for n in node.value
                if isinstance(n, yaml.ScalarNode)
            ]
        elif isinstance(node, yaml.ScalarNode):
            words += _scalar_words(node, text)
    shell = [at for at, word in enumerate(words[:4]) if re.fullmatch(r"-\w*c", word.text)]
    if shell and words[0].text.endswith("sh") and words[shell[0] + 1 :]:
        script = words[shell[0] + 1].node
        words = _scalar_words(script, text, script=True) if script else []
    return list(_expand(words, environment))


def _expand(words: Iterable[Span], environment: dict[str, str]) -> Iterator[Span]:
    """Expand variables of the environment, to which assignments among the words are added."""

    def value(match: re.Match[str]) -> str:
        """Expand a variable; one that the file does not set stays unchanged."""
        if match[0] == "$$":
            return "$"
        name = match[1] or match[2] or match[4]
        return environment.get(name, match[0] if match[3] is None else match[3])

    for word in words:
        text = _VARIABLE.sub(value, word.text)
        if _ASSIGNMENT.match(text):
            name, _, environment[name] = text.partition("=")
        if word.is_variable and len(parts := text.split()) > 1:
            yield from (replace(word, text=part, start=-1) for part in parts)
        else:
            yield replace(word, text=text)


def _scalar_words(node: yaml.ScalarNode, text: str, *, script: bool = False) -> list[Span]:
    quote = node.style or ""
    start, end = node.start_mark.index, _end(node)
    if quote in ("|", ">"):
        start = text.find("\n", start)
    elif quote:
        start, end = start + 1, end - 1
    value = _shell_words(node.value, script=script)
    raw = _shell_words(text[start:end], script=script and quote != ">")
    if [w.text for w in value if w.text != "\n"] != [w.text for w in raw if w.text != "\n"]:
        return [replace(word, start=-1) for word in value]
    return [replace(w, start=w.start + start, end=w.end + start, quote=quote) for w in raw]


def _shell_words(text: str, *, script: bool = False) -> list[Span]:
    """Split like a shell; in a `script`, operators and line ends are words too."""
    words = []
    for match in _WORD.finditer(text):
        if match[0] == "\\\n" or (match[0] in _ENDS and not script):
            continue
        if match[0] in _ENDS:
            words.append(Span(match[0]))
            continue
        # White space before the word, with a line continuation.
        before = text[max(0, match.start() - _NEAR) : match.start()]
        glue = re.search(r"\s+(\\\n\s*)?\Z", before)
        word = "".join(shlex.split(match[0]))
        variable = match[0][0] == "$"
        words.append(Span(word, *match.span(), glue=glue[0] if glue else " ", is_variable=variable))
    return words


def _after_vllm_serve(words: Sequence[Span]) -> tuple[list[Span], bool]:
    place = _serve_slice([word.text for word in words])
    return list(words[place or slice(None)]), place is not None


def _serve_slice(words: Sequence[str]) -> slice | None:
    """Locate the words for `vllm serve` in a command; None if it does not start vLLM."""
    pairs = list(zip(["", *words], words, strict=False))
    starts = [
        at + 1
        for at, (before, word) in enumerate(pairs)
        if word == _SERVER or (word == "serve" and Path(before).name in _PROGRAMS)
    ]
    if not starts and any(
        word == "run" and Path(before).name in _CONTAINERS for before, word in pairs
    ):
        starts = [
            at + 1 + (words[at + 1 : at + 2] == ["serve"])
            for at, (before, word) in enumerate(pairs)
            if _IMAGE.fullmatch(word) and (before[:1] != "-" or _SWITCHES.fullmatch(before))
        ]
    if not starts:
        return None
    rest = enumerate(words[starts[0] :], starts[0])
    ends = (at for at, word in rest if word in _ENDS or re.match(r"\d?>", word))
    return slice(starts[0], next(ends, None))


def _model_around(path: Sequence[yaml.MappingNode]) -> str | None:
    nodes = (_fields(mapping).get(name) for mapping in reversed(path) for name in _MODELS)
    values = (str(node.value) for node in nodes if isinstance(node, yaml.ScalarNode))
    return next((value.removeprefix("hf://") for value in values), None)


def _environment(fields: Mapping[str, yaml.Node]) -> Iterator[tuple[str, str]]:
    """Yield the names and values of a container's environment that the file itself contains."""
    for key in ("env", "environment"):
        node = fields.get(key)
        if isinstance(node, yaml.MappingNode):
            yield from ((k, v.value) for k, v in _fields(node).items() if _is_text(v))
        for one in node.value if isinstance(node, yaml.SequenceNode) else ():
            pair = _fields(one)
            if "name" in pair and _is_text(pair.get("value")):
                yield pair["name"].value, pair["value"].value
            elif _is_text(one) and "=" in one.value:
                name, _, value = one.value.partition("=")
                yield name, value


def _is_text(node: yaml.Node | None) -> bool:
    return isinstance(node, yaml.ScalarNode)


def _mappings(
    node: yaml.Node, path: tuple[yaml.MappingNode, ...]
) -> Iterator[tuple[yaml.MappingNode, ...]]:
    """Yield the path to every mapping, outermost first."""
    if isinstance(node, yaml.MappingNode):
        path = (*path, node)
        yield path
    for part in _parts(node):
        yield from _mappings(part, path)


def _fields(node: yaml.Node) -> dict[str, yaml.Node]:
    """Return the values of a mapping by key; its own win over merged ones (`<<`)."""
    fields: dict[str, yaml.Node] = {}
    for key, value in node.value if isinstance(node, yaml.MappingNode) else ():
        if key.value == "<<":
            fields = {**_fields(value), **fields}
        elif isinstance(key.value, str):
            fields[key.value] = value
    return fields


def _parts(node: yaml.Node) -> list[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        return [part for pair in node.value for part in pair]
    return node.value if isinstance(node, yaml.SequenceNode) else []


def _spans(words: Sequence[Span]) -> Iterator[Span]:
    at = 0
    while at < len(words):
        first = last = words[at]
        at += 1
        while at < len(words) and not words[at].text.startswith("-"):
            last = words[at]
            at += 1
        name = _argument(first.text) if first.text.startswith("-") else ""
        yield replace(first, text=name, end=last.end)


def _argument(option: str) -> str:
    """Return the argument that an option sets, by its spelling: `--a-b.c=1` sets a_b."""
    return option.lstrip("-").partition("=")[0].partition(".")[0].replace("-", "_")


def _yaml_word(word: str) -> str:
    return yaml.safe_dump([word], default_flow_style=True, width=1 << 20, allow_unicode=True)[1:-2]


def _end(node: yaml.Node) -> int:
    """Return the end of its last character; a block's own end mark is where the next one begins."""
    parts = _parts(node)
    if parts and isinstance(node, yaml.CollectionNode) and not node.flow_style:
        return _end(parts[-1])
    mark = node.end_mark
    if getattr(node, "style", None) in ("|", ">"):
        return len(mark.buffer[: mark.pointer].rstrip()) if mark.buffer else mark.index
    return int(mark.index)


def _read(path: Path) -> tuple[str, list[yaml.Node]]:
    """Return the file's text and the YAML documents before any error. Raises UsageError."""
    if not path.is_file():
        raise UsageError(
            f"--config {path}: no such file", hint="pass the file that vllm serve reads"
        )
    documents: list[yaml.Node] = []
    try:
        text = read_document(path, _MAX_BYTES).decode()
        # Compose without tags, so that YAML constructs no objects yet.
        for root in yaml.compose_all(text, yaml.SafeLoader):
            _expanded_size(root, 0, {})
            documents.append(root)
    except yaml.YAMLError:
        return text, documents  # vLLM's parser reports the error.
    except OSError as error:
        raise UsageError(f"--config {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"--config {path} is not UTF-8 text") from error
    except (RecursionError, OverflowError) as error:
        raise UsageError(
            f"--config {path} is nested too deeply, or its aliases expand to too many values",
            hint="write the values out instead of aliases",
        ) from error
    return text, documents


def _expanded_size(node: yaml.Node, depth: int, sizes: dict[int, int]) -> int:
    """Count the values after aliases are expanded. Raises OverflowError for too many."""
    if id(node) not in sizes and depth <= _MAX_DEPTH:
        sizes[id(node)] = 0
        sizes[id(node)] = 1 + sum(_expanded_size(part, depth + 1, sizes) for part in _parts(node))
    if not 0 < sizes.get(id(node), 0) <= _MAX_VALUES:
        raise OverflowError
    return sizes[id(node)]
