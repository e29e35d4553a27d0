"""Reads the vLLM configuration that a user keeps, in any of its forms, and writes tuned values in.

A form is a file for `vllm serve --config`, a Kubernetes manifest, a compose file, Helm values, a
shell script, or flags alone.
"""

from __future__ import annotations

import difflib
import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

import yaml

from mmcalib.engine.messages import ParseServeConfig, ServeConfig
from mmcalib.engine.vllm_config import model_beside
from mmcalib.errors import UsageError
from mmcalib.files import read_document
from mmcalib.options.validation import DECIDED, TAKEN
from mmcalib.results.engine_yaml import entry, serve_option
from mmcalib.text import flag

# vLLM's parser wants a model; what it is called does not matter to it.
UNNAMED: Final = "unnamed"
# A configuration with every option of `vllm serve` has some 300 lines.
_MOST_BYTES: Final = 1 << 18
# Values, each alias counted as what it stands for: vLLM writes them all out.
_MOST_VALUES: Final = 100_000
_MOST_DEPTH: Final = 50

# Where manifests, compose files and charts keep the words of a container, in their order.
_HOLDERS: Final = ("entrypoint", "command", "args", "extraArgs")
# Options that production-stack's chart has fields for.
_CHART: Final = {
    "maxModelLen": "max_model_len",
    "maxNumSeqs": "max_num_seqs",
    "gpuMemoryUtilization": "gpu_memory_utilization",
    "tensorParallelSize": "tensor_parallel_size",
    "dtype": "dtype",
    "enableChunkedPrefill": "enable_chunked_prefill",
    "enablePrefixCaching": "enable_prefix_caching",
}
# KServe's runtime has these for itself, and hands the others on to vLLM.
_KSERVE: Final = {"model_id": "--model", "model_name": "--served-model-name", "backend": ""}
# Fields around a container that name its model.
_MODELS: Final = ("modelURL", "storageUri", "uri", "model")
_SERVER: Final = "vllm.entrypoints.openai.api_server"
_PROGRAMS: Final = ("vllm", "vllm.entrypoints.cli.main")
# An image of vLLM; the options of `docker run` that take no value, which may stand before it.
_IMAGE: Final = re.compile(
    r"(?:[\w.-]+(?::\d+)?/)?(?:[^\s:=]+/)*[\w.-]*vllm[\w.-]*(?:[:@][\w.:-]+)?"
)
_SWITCHES: Final = re.compile(
    r"--?[\w-]+=.*|-[itdP]+|--(?:rm|init|detach|interactive|tty|privileged)"
)
_ASSIGNMENT: Final = re.compile(r"[A-Za-z_]\w*=")
_CONTAINERS: Final = ("docker", "podman", "nerdctl")
_STARTERS: Final = (*_CONTAINERS, "kubectl", "env", "sudo", "exec", "nohup", "uv", "uvx", "vllm")
_WORD: Final = re.compile(
    r"""\\\n|&&|\|\||[;|&\n]|(?:[^\s"'\\;|&]|\\[^\n]|"(?:\\.|[^"\\])*"|'[^']*')+""", re.S
)
_ENDS: Final = frozenset({"&&", "||", ";", "|", "&", "\n"})
_VARIABLE: Final = re.compile(r"\$(?:\$|\((\w+)\)|\{(\w+)(?::?-([^}]*))?\}|(\w+))")

# How far around a word its line is looked at.
_NEAR: Final = 1_000

Form = Literal["entry", "item", "list", "shell", "field"]
# What goes with an option that is taken out of the text.
_BEFORE: Final[Mapping[Form, str]] = {
    "entry": r"\n[^\n]*\Z",
    "item": r"\n\s*-\s*\Z",
    "list": r",\s*\Z",
    "shell": r"\s*(\\\n)?\s*\Z",
    "field": r"\n\s*\w+:\s*\Z",
}


@dataclass(frozen=True, slots=True)
class Span:
    """A word, or an option with its values, by the argument that it sets, and its place, -1 where
    the text has other characters. `glue` separates words, `quote` is YAML's around them.
    """

    text: str
    start: int = -1
    end: int = -1
    form: Form = "shell"
    glue: str = " "
    quote: str = "|"
    node: yaml.ScalarNode | None = None

    def written(self, name: str, value: Any) -> str:
        """An option as it is written in this place."""
        if self.form == "field":
            return json.dumps(value)
        if self.form == "entry":
            return entry(name, value).rstrip("\n")
        words = serve_option(name, value)
        if self.form != "shell":
            return self.glue.join(map(_yaml_word, words))
        if not self.quote:
            # A colon before a space would end a plain scalar.
            dumps = partial(json.dumps, separators=(",", ":"))
            words = [w if w[0] not in "[{" else dumps(json.loads(w)) for w in words]
        said = shlex.join(words)
        return {"'": said.replace("'", "''"), '"': json.dumps(said)[1:-1]}.get(self.quote, said)

    def addition(self, text: str, more: Mapping[str, Any]) -> tuple[int, int, str]:
        """Where these options go behind this one, and as what."""
        line_ends = text.find("\n", self.end) if self.form in ("entry", "item", "field") else -1
        at = self.end if self.form in ("list", "shell") else len(text)
        at = at if line_ends < 0 else line_ends
        if self.form == "field":
            words = [word for name, value in more.items() for word in serve_option(name, value)]
            indent = re.search(r" *(?=[^\n ][^\n]*\Z)", text[: self.start])
            listed = ", ".join(map(_yaml_word, words))
            return at, at, f"\n{indent[0] if indent else ''}extraArgs: [{listed}]"
        return at, at, "".join(self.glue + self.written(*one) for one in more.items())


@dataclass(frozen=True, slots=True)
class WrittenConfiguration:
    """A configuration of `vllm serve` before any release reads it: the `config` that vLLM itself
    reads, with its `settings`, or the flags that any other form has `written`; `flags` beside it
    win. `spans` are places in `text`.
    """

    source: Path | None = None
    text: str = ""
    model: str | None = None
    config: Path | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    written: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    spans: tuple[Span, ...] = ()

    @property
    def named_model(self) -> str | None:
        return self.model or str(self.settings.get("model") or "") or None

    @property
    def question(self) -> ParseServeConfig:
        """What vLLM's parser is asked, with the model first, as it wants one."""
        named = () if self.model is None and "model" in self.settings else (self.model or UNNAMED,)
        path = None if self.config is None else str(self.config)
        return ParseServeConfig(path, (*named, *self.flags), self.written)

    def tuned(self, engine_args: Mapping[str, Any], read: Mapping[str, Any]) -> str:
        """The text with these arguments in place of those that were `read` and mmcalib decides."""
        text, done = self.text, set[str]()
        edits: list[tuple[int, int, str]] = []
        for span in self.spans:
            name = span.text
            if name not in DECIDED or engine_args.get(name) == read.get(name):
                continue
            if name in TAKEN and name not in engine_args:
                continue
            if name in engine_args and name not in done:
                edits.append((span.start, span.end, span.written(name, engine_args[name])))
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
            # A chart's own fields are few: others go to its list of arguments.
            last = max(self.spans, key=lambda span: (span.form != "field", span.end))
            edits.append(last.addition(text, more))
        for start, end, new in sorted(edits, reverse=True):
            text = text[:start] + new + text[end:]
        return text

    def diff(self, engine_args: Mapping[str, Any], read: Mapping[str, Any]) -> str:
        """A unified diff from the text to the tuned one."""
        name = str(self.source) if self.spans and self.source else "vllm serve"
        shown = self if self.spans else command_line(self)
        old, new = (t.splitlines() for t in (shown.text, shown.tuned(engine_args, read)))
        lines = difflib.unified_diff(old, new, name, name, "yours", "tuned", lineterm="")
        return "".join(f"{line}\n" for line in lines)


def read_configuration(
    config: Path | None, flags: Sequence[str] = (), model: str | None = None
) -> WrittenConfiguration:
    """What file, flags and model say together. The flags may be a whole command, or name the file.
    Raises UsageError where the file cannot be read, or file or command start no vLLM.
    """
    flags = pasted_flags(flags)
    if config is None and flags and flags[0].endswith((".yaml", ".yml", ".sh")):
        config, flags = Path(flags[0]), flags[1:]
    if config is None and "--config" in flags[:-1]:
        at = flags.index("--config")
        config, flags = Path(flags[at + 1]), [*flags[:at], *flags[at + 2 :]]
    model, flags = model_beside(model, flags)
    beside = WrittenConfiguration(config, "", model, flags=tuple(flags))
    if config is None:
        return command_line(beside)
    text, documents = _read(config)
    beside = replace(beside, text=text)
    found = [one for root in documents for one in _commands(root, text)]
    if not found and not (documents and isinstance(documents[0], yaml.MappingNode)):
        script, starts = _behind_vllm(_shell_words(text, script=True))
        found = [(script, None)] if starts else []
    if len(found) > 1:
        raise UsageError(
            f"--config {config}: {len(found)} containers of it start vLLM",
            hint="a file with one of them",
        )
    if found:
        return _of_words(beside, *found[0])
    if any("kind" in _fields(root) or "services" in _fields(root) for root in documents):
        raise UsageError(
            f"--config {config}: no container of it has vLLM's flags in command or args",
            hint="mmcalib ... -- and the flags of vllm serve",
        )
    return _of_entries(beside, documents)


def pasted_flags(words: Sequence[str]) -> list[str]:
    """The words of `vllm serve` in a pasted command. Raises UsageError where it starts another."""
    # A mark of a line that goes on is a word where a blank or nothing follows it.
    said = [word for word in words if not word or word.strip("\\ \t\r\n")]
    if len(said) == 1 and re.search(r"\s-", said[0]):
        text = re.sub(r"\\[ \t]*\r?\n", " ", said[0]).strip()
        said = [word.text for word in _shell_words(text, script=True)]
    served = _served_words(said)
    said = said[served or slice(None)]
    while served is None and said and _ASSIGNMENT.match(said[0]):
        del said[0]
    if said and (Path(said[0]).name in _STARTERS or re.match(r"(.*/)?python[\d.]*$", said[0])):
        raise UsageError(
            f"{said[0]} ... does not start vllm serve, as far as mmcalib reads it",
            hint="after --, leave out all that comes before the flags of vllm serve",
        )
    return said


def command_line(of: WrittenConfiguration) -> WrittenConfiguration:
    """The same as the text of a command, an option on each line."""
    lines = [["vllm", "serve", *([of.model] if of.model else [])]]
    for word in (*of.written, *of.flags):
        if word.startswith("-"):
            lines.append([])
        lines[-1].append(word)
    text = " \\\n    ".join(map(shlex.join, lines)) + "\n"
    # With quotes around each JSON, and on a line of its own.
    spans = _spans([replace(w, glue=" \\\n    ") for w in _shell_words(text)])
    return replace(of, text=text, spans=tuple(spans))


def trusted(parsed: ServeConfig, path: Path | None) -> ServeConfig:
    """The same. Raises UsageError where the file names what vLLM would import or write."""
    if parsed.reaching:
        raise UsageError(
            f"--config {path} names what vLLM would import, run, write or connect to: "
            f"{', '.join(parsed.reaching)}",
            hint="remove it, or say it yourself, as a flag of vllm serve: mmcalib ... -- "
            + " ".join(map(flag, parsed.reaching[:1])),
        )
    return parsed


def _of_words(
    beside: WrittenConfiguration, words: Sequence[Span], model: str | None
) -> WrittenConfiguration:
    said = [word.text for word in words]
    if any(word.partition("=")[0] == "--config" for word in said):
        raise UsageError(
            f"--config {beside.source}: its vLLM reads a file of its own, with --config",
            hint="--config that file",
        )
    named, flags = model_beside(None, said)
    known = all(word.start >= 0 for word in words)
    return replace(
        beside,
        model=beside.model or named or model,
        written=tuple(flags),
        spans=tuple(_spans(words)) if known else (),
    )


def _of_entries(beside: WrittenConfiguration, roots: Sequence[yaml.Node]) -> WrittenConfiguration:
    """A file that vLLM reads itself, or finds fault with."""
    try:
        settings = yaml.safe_load(beside.text)
    except (yaml.YAMLError, ValueError, OverflowError):
        settings = None
    if not isinstance(settings, dict):
        return replace(beside, config=beside.source)
    text, root = beside.text, roots[0]
    if isinstance(root, yaml.CollectionNode) and root.flow_style:
        text = yaml.safe_dump(settings, sort_keys=False)
        root = yaml.compose(text, yaml.SafeLoader) or root
    spans = tuple(
        Span(_argument(str(key.value)), key.start_mark.index, _end(value), "entry", "\n", "")
        for key, value in root.value
    )
    keys = {str(key): value for key, value in settings.items()}
    return replace(beside, text=text, config=beside.source, settings=keys, spans=spans)


def _commands(root: yaml.Node, text: str) -> list[tuple[list[Span], str | None]]:
    """The words for `vllm serve` in each container, those that name vLLM first, and its model."""
    named: list[tuple[list[Span], str | None]] = []
    others: list[tuple[list[Span], str | None]] = []
    for path in _mappings(root, ()):
        fields = _fields(path[-1])
        words, starts = _behind_vllm(_container_words(fields, text))
        charted = [
            Span(word, node.start_mark.index, _end(node), "field")
            for key, name in _CHART.items()
            if isinstance(node := fields.get(key), yaml.ScalarNode)
            for word in serve_option(name, yaml.safe_load(node.value))
        ]
        words = [*charted, *words]
        if "modelFormat" in fields:
            starts, given = True, [(word, *word.text.partition("=")) for word in words]
            words = [
                replace(word, text=f"{ours}={value}" if value else ours)
                for word, name, _, value in given
                if (ours := _KSERVE.get(_argument(name), name))
            ]
        image = fields.get("image")
        starts |= isinstance(image, yaml.ScalarNode) and "vllm" in image.value
        starts |= "extraArgs" in fields
        if any(word.text.startswith("--") for word in words) or (words and starts):
            (named if starts else others).append((words, _model_around(path)))
    return named or others


def _container_words(fields: Mapping[str, yaml.Node], text: str) -> list[Span]:
    words: list[Span] = []
    for name in _HOLDERS:
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
    environment = dict(_environment(fields))

    def value(found: re.Match[str]) -> str:
        """Of a variable; one that the file does not say stays as it is."""
        if found[0] == "$$":
            return "$"
        name = found[1] or found[2] or found[4]
        return environment.get(name, found[0] if found[3] is None else found[3])

    return [replace(w, text=_VARIABLE.sub(value, w.text)) for w in words]


def _scalar_words(node: yaml.ScalarNode, text: str, *, script: bool = False) -> list[Span]:
    """Those of a command line in one scalar."""
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
    """As a shell reads them; of a `script` the operators and ends of lines are words, too."""
    found = []
    for match in _WORD.finditer(text):
        if match[0] == "\\\n" or (match[0] in _ENDS and not script):
            continue
        if match[0] in _ENDS:
            found.append(Span(match[0]))
            continue
        # White space before the word, with the mark of a line that goes on.
        before = text[max(0, match.start() - _NEAR) : match.start()]
        glue = re.search(r"\s+(\\\n\s*)?\Z", before)
        word = "".join(shlex.split(match[0]))
        found.append(Span(word, *match.span(), glue=glue[0] if glue else " "))
    return found


def _behind_vllm(words: Sequence[Span]) -> tuple[list[Span], bool]:
    """What follows the start of the server in one command, else all; and whether there is one."""
    served = _served_words([word.text for word in words])
    return list(words[served or slice(None)]), served is not None


def _served_words(said: Sequence[str]) -> slice | None:
    """Where the words for `vllm serve` stand in a command; None where nothing starts it."""
    pairs = list(zip(["", *said], said, strict=False))
    starts = [
        at + 1
        for at, (before, word) in enumerate(pairs)
        if word == _SERVER or (word == "serve" and Path(before).name in _PROGRAMS)
    ]
    if not starts and any(
        word == "run" and Path(before).name in _CONTAINERS for before, word in pairs
    ):
        starts = [
            at + 1 + (said[at + 1 : at + 2] == ["serve"])
            for at, (before, word) in enumerate(pairs)
            if _IMAGE.fullmatch(word) and (before[:1] != "-" or _SWITCHES.fullmatch(before))
        ]
    if not starts:
        return None
    rest = enumerate(said[starts[0] :], starts[0])
    ends = (at for at, word in rest if word in _ENDS or re.match(r"\d?>", word))
    return slice(starts[0], next(ends, None))


def _model_around(path: Sequence[yaml.MappingNode]) -> str | None:
    for mapping in reversed(path):
        fields = _fields(mapping)
        for name in _MODELS:
            node = fields.get(name)
            if isinstance(node, yaml.ScalarNode):
                return str(node.value).removeprefix("hf://")
    return None


def _environment(fields: Mapping[str, yaml.Node]) -> Iterator[tuple[str, str]]:
    """What a container's environment says in the file itself."""
    for holder in ("env", "environment"):
        node = fields.get(holder)
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
    """Every mapping, behind those that it is in."""
    if isinstance(node, yaml.MappingNode):
        path = (*path, node)
        yield path
    for part in _parts(node):
        yield from _mappings(part, path)


def _fields(node: yaml.Node) -> dict[str, yaml.Node]:
    """The values of a mapping by their keys, those that are merged in below its own."""
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
    """Each option with its values."""
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
    """What an option sets, as far as its spelling tells: `--a-b.c=1` sets a_b."""
    return option.lstrip("-").partition("=")[0].partition(".")[0].replace("-", "_")


def _yaml_word(word: str) -> str:
    return yaml.safe_dump([word], default_flow_style=True, width=1 << 20, allow_unicode=True)[1:-2]


def _end(node: yaml.Node) -> int:
    """Behind its last character: a block's own mark is where the next one begins."""
    parts = _parts(node)
    if parts and isinstance(node, yaml.CollectionNode) and not node.flow_style:
        return _end(parts[-1])
    mark = node.end_mark
    if getattr(node, "style", None) in ("|", ">"):
        return len(mark.buffer[: mark.pointer].rstrip()) if mark.buffer else mark.index
    return int(mark.index)


def _read(path: Path) -> tuple[str, list[yaml.Node]]:
    """The file's text and its YAML documents, as far as they can be read. Raises UsageError."""
    if not path.is_file():
        raise UsageError(
            f"--config {path}: no such file", hint="--config names what vllm serve reads"
        )
    documents: list[yaml.Node] = []
    try:
        text = read_document(path, _MOST_BYTES).decode()
        # Without tags, so that nothing is made of anything yet.
        for root in yaml.compose_all(text, yaml.SafeLoader):
            _size(root, 0, {})
            documents.append(root)
    except yaml.YAMLError:
        # Whoever parses it says what is wrong with it.
        return text, documents
    except OSError as error:
        raise UsageError(f"--config {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"--config {path}: it is not UTF-8 text") from error
    except (RecursionError, OverflowError) as error:
        why = "it is nested too deeply, or its aliases stand for too much"
        raise UsageError(f"--config {path}: {why}", hint="write out what the aliases mean") from (
            error
        )
    return text, documents


def _size(node: yaml.Node, depth: int, known: dict[int, int]) -> int:
    """How many values there are when no alias is left. Raises OverflowError for too many."""
    if id(node) not in known and depth <= _MOST_DEPTH:
        known[id(node)] = 0
        known[id(node)] = 1 + sum(_size(part, depth + 1, known) for part in _parts(node))
    if not 0 < known.get(id(node), 0) <= _MOST_VALUES:
        raise OverflowError
    return known[id(node)]
