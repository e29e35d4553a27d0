"""Read a user's vLLM configuration in any of its forms, and write tuned values into it.

The forms are tried in the order of `read_commands`. What a form does not use, it names.
"""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import yaml

from mmcalib.configs.commands import (
    Command,
    choose_command,
    extract_serve_flags,
    find_script_commands,
    names_file,
    split_choice,
    split_model,
)
from mmcalib.configs.manifests import (
    end_of,
    fields_of,
    parts_of,
    read_chart,
    read_compose,
    read_kubernetes,
)
from mmcalib.configs.programs import read_program
from mmcalib.configs.shell import Script, read_script
from mmcalib.configs.words import BEFORE, Span, argument, keep_known, option_spans
from mmcalib.engine.messages import ParseServeConfig, ServeConfig
from mmcalib.engine.wheels import BUILDS, installed_version
from mmcalib.errors import UsageError
from mmcalib.files import read_document
from mmcalib.options.run import DERIVED_ARGUMENTS, KEPT_ARGUMENTS
from mmcalib.results.engine_yaml import serve_option
from mmcalib.text import describe_releases

# vLLM's parser requires a model, and accepts any name.
PLACEHOLDER_MODEL: Final = "unnamed"
# A configuration with every option of `vllm serve` has some 300 lines.
_MAX_BYTES: Final = 1 << 18
# Values after YAML aliases are expanded, as vLLM expands them.
_MAX_VALUES: Final = 100_000
_MAX_DEPTH: Final = 50
_FORMS: Final = (
    "vLLM's YAML, a Kubernetes manifest, a compose file, Helm values, a shell script, a systemd "
    "unit, a Python program with LLM(...), or flags of vllm serve"
)
# Readers of YAML, in order; what none of them knows is vLLM's own.
_OBJECTS: Final = (read_kubernetes, read_compose, read_chart)
_YAML: Final = (".yaml", ".yml", ".json")
_OPTION: Final = re.compile(r"[A-Za-z][\w.+-]*")
_OF_VLLM: Final = re.compile(r"VLLM_|PYTORCH_(?:CUDA_)?ALLOC_CONF$")
# Characters around a word in which its line is searched.
_NEAR: Final = 1_000


@dataclass(frozen=True, slots=True)
class WrittenConfiguration:
    """A configuration of `vllm serve` as written, before any release parses it.

    It is either the `config` file that vLLM itself reads, with its `settings`, or the flags
    `spell` in another form. The user's `flags` win over both. `spans` are places in `text`.
    `environment` names the variables of vLLM and of PyTorch's allocator that it sets, `releases`
    those of vLLM that it is for, and `unread` is what mmcalib does not use of it.
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
    releases: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()

    def notes(self) -> Iterator[str]:
        """Say what of the file is not used, and whether it is for another release of vLLM."""
        yield from (f"{self.source}, {note}" for note in dict.fromkeys(self.unread))
        installed = next(filter(None, map(installed_version, BUILDS)), "").partition("+")[0]
        if installed and (others := sorted({*self.releases} - {installed})):
            yield describe_releases(str(self.source), ", ".join(others), installed)

    def environment_notes(self, parsed: ServeConfig, own: Mapping[str, str]) -> Iterator[str]:
        """Name the file's variables that are not in the `own` environment."""
        unset = [name for name in self.environment if name not in own]
        known = [name for name in unset if name in parsed.variables]
        if known:
            yield f"{self.source} sets {', '.join(known)}: export the same here to apply them"
        if len(known) < len(unset):
            others = ", ".join(name for name in unset if name not in known)
            yield f"{self.source} sets {others}: the installed vLLM reads no such variable"

    @property
    def model_name(self) -> str | None:
        return self.model or str(self.settings.get("model") or "") or None

    @property
    def parse_request(self) -> ParseServeConfig:
        """Return the request for vLLM's parser, with the model that it requires first."""
        is_in_file = self.model is None and "model" in self.settings
        model = () if is_in_file else (self.model or PLACEHOLDER_MODEL,)
        path = None if self.config is None else str(self.config)
        return ParseServeConfig(path, (*model, *self.flags), self.file_flags, self.environment)

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
                before = re.search(BEFORE[span.form], text[near : span.start])
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
        source = self.source and split_choice(self.source)[0]
        name = str(source) if self.spans and source else "vllm serve"
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
    if config is None and flags and names_file(flags[0]):
        config, flags = Path(flags[0]), flags[1:]
    if config is None and "--config" in flags[:-1]:
        at = flags.index("--config")
        config, flags = Path(flags[at + 1]), [*flags[:at], *flags[at + 2 :]]
    model, flags = split_model(model, flags)
    written = WrittenConfiguration(config, "", model, flags=tuple(flags))
    if config is None:
        return as_command(written)
    path, choice = split_choice(config)
    text, documents, fault_line = _read(path)
    is_yaml = any(isinstance(root, yaml.MappingNode) for root in documents)
    faults = (f"line {fault_line}: YAML ends here; read in part",) if fault_line and is_yaml else ()
    written = replace(written, text=text, unread=faults)
    try:
        commands = read_commands(path, text, documents)
    except (RecursionError, OverflowError) as error:
        hint = "mmcalib ... -- followed by the flags of vllm serve"
        raise UsageError(f"--config {path} is nested or grows too much", hint=hint) from error
    if commands is not None:
        return _from_command(written, choose_command(commands, path, choice))
    if choice:
        raise UsageError(f"{path} is one configuration, without {choice}", hint=f"--config {path}")
    return _from_vllm_file(written, documents)


def read_commands(path: Path, text: str, documents: Sequence[yaml.Node]) -> list[Command] | None:
    """Return the commands that start vLLM, at least one; None for vLLM's own YAML.

    Raises UsageError if there are none, or if the file has no form that mmcalib reads.
    """
    if path.suffix == ".py":
        found, what = read_program(text), "call of vLLM's LLM or EngineArgs that Python can parse"
    elif any(objects := [_read_object(root, text) for root in documents]) or [] in objects:
        found = [command for commands in objects for command in commands or ()]
        what = "container with vLLM's flags in command or args"
    elif path.suffix in _YAML or _is_mapping_of_options(documents):
        return None
    else:
        scripts = (read(text) for read in _SCRIPTS)
        found, what = next(filter(None, scripts), []), f"form that mmcalib reads: {_FORMS}"
        what = "command that starts vLLM" if text[:2] == "#!" or path.suffix == ".sh" else what
    if not found:
        raise UsageError(
            f"--config {path} has no {what}",
            hint="mmcalib ... -- followed by the flags of vllm serve",
        )
    return found


def _read_object(root: yaml.Node, text: str) -> list[Command] | None:
    found = (read(root, text) for read in _OBJECTS)
    return next((commands for commands in found if commands is not None), None)


def _is_mapping_of_options(documents: Sequence[yaml.Node]) -> bool:
    keys = fields_of(documents[0]) if documents else {}
    return bool(keys) and all(map(_OPTION.fullmatch, keys))


def _read_script(text: str) -> list[Command]:
    return find_script_commands(read_script(text))


def _read_unit(text: str) -> list[Command]:
    """Read a systemd unit: a script in which only two of its fields are not blank."""
    if not re.search(r"(?m)^ExecStart=", text):
        return []
    lines, goes_on = list[str](), False
    for line in text.splitlines(keepends=True):
        start = re.match(r"ExecStart=[-@:+!]*|Environment=", line)
        if start is not None:
            name = "export" if start[0] == "Environment=" else ""
            line = name.ljust(start.end()) + line[start.end() :]
        elif not goes_on:
            line = "\n"
        goes_on = (goes_on or start is not None) and line.rstrip("\n").endswith("\\")
        lines.append(line)
    # Places would be those in this script.
    return find_script_commands(read_script("".join(lines), offset=None))


def _read_variable(text: str) -> list[Command]:
    """Read the flags that one variable of an environment file has, as a shell would split them."""
    numbered = [(n, line) for n, line in enumerate(text.splitlines(), 1) if line.strip()]
    pairs = [(n, *line.partition("=")[::2]) for n, line in numbered if line[:1] != "#"]
    environment = {name: value for _, name, value in pairs}
    if not all(map(str.isidentifier, environment)):
        return []
    scripts = (read_script(value, offset=None, line=line) for line, _, value in pairs)
    return [one for script in scripts for one in _only_flags(script, environment)]


def _read_flags(text: str) -> list[Command]:
    """Read flags alone, in one line or several, after a model or none."""
    return _only_flags(read_script(text), {})


def _only_flags(script: Script, environment: Mapping[str, str]) -> list[Command]:
    firsts = [command.words[0].text for command in script.commands]
    words = [word for command in script.commands for word in command.words]
    is_first = any(word.text.startswith("--") for word in words[:2]) and len(words) > 1
    is_alone = all(first.startswith("--") for first in firsts[1:])
    if not is_first or not is_alone or any(one.environment for one in script.commands):
        return []
    return [Command(*keep_known(words), script.commands[0].line, environment=environment)]


# Readers of other text, in order.
_SCRIPTS: Final = (_read_unit, _read_script, _read_variable, _read_flags)


def _from_command(written: WrittenConfiguration, command: Command) -> WrittenConfiguration:
    texts = [word.text for word in command.words]
    if any(text.partition("=")[0] == "--config" for text in texts):
        raise UsageError(
            f"--config {written.source} starts vLLM with another --config file",
            hint="pass that file with --config",
        )
    own_model, flags = split_model(None, texts)
    unread = [*command.unread]
    if own_model and command.model and own_model != command.model:
        unread.append(f"line {command.line}: {command.model} is not read, but --model {own_model}")
    has_places = all(word.start >= 0 for word in command.words)
    return replace(
        written,
        model=written.model or own_model or command.model,
        file_flags=flags,
        spans=tuple(option_spans(_with_glue(command.words, written.text))) if has_places else (),
        environment=tuple(filter(_OF_VLLM.match, command.environment)),
        releases=tuple(command.releases),
        unread=(*written.unread, *unread),
    )


def _with_glue(words: Sequence[Span], text: str) -> list[Span]:
    """Note the white space before each word of a shell, with a line continuation."""
    ends = [0, *(word.end for word in words)]
    before = (text[end : word.start] for end, word in zip(ends, words, strict=False))
    found = (re.search(r"\s+(\\\n\s*)?\Z", near) for near in before)
    return [
        replace(word, glue=glue[0]) if glue and word.form == "shell" else word
        for word, glue in zip(words, found, strict=True)
    ]


def as_command(of: WrittenConfiguration) -> WrittenConfiguration:
    """Return it as a command with an option on each line."""
    text, words = "vllm serve", list[Span]()
    for word in [*([of.model] if of.model else []), *of.file_flags, *of.flags]:
        # JSON stays quoted, on its own line.
        text += " \\\n    " if word.startswith("-") else " "
        start = len(text)
        text += shlex.quote(word)
        words.append(Span(word, start, len(text), glue=" \\\n    "))
    return replace(of, text=f"{text}\n", spans=tuple(option_spans(words)))


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
        Span(argument(str(key.value)), key.start_mark.index, end_of(value), 0, "entry", "\n", "")
        for key, value in root.value
    )
    keys = {str(key): value for key, value in settings.items()}
    return replace(written, text=text, config=written.source, settings=keys, spans=spans)


def _read(path: Path) -> tuple[str, list[yaml.Node], int | None]:
    """Return the file's text, its YAML documents and the line of an error, which ends them.

    Raises UsageError.
    """
    if not path.is_file():
        raise UsageError(
            f"--config {path}: no such file", hint="pass the file that vllm serve reads"
        )
    documents: list[yaml.Node] = []
    try:
        text = read_document(path, _MAX_BYTES).decode().replace("\r\n", "\n")
        # Compose without tags, so that YAML constructs no objects yet.
        for root in yaml.compose_all(text, yaml.SafeLoader):
            _expanded_size(root, 0, {})
            documents.append(root)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        return text, documents, 1 + mark.line if mark else None
    except OSError as error:
        raise UsageError(f"--config {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"--config {path} is not UTF-8 text") from error
    except (RecursionError, OverflowError) as error:
        raise UsageError(
            f"--config {path} is nested too deeply, or its aliases expand to too many values",
            hint="write the values out instead of aliases",
        ) from error
    return text, documents, None


def _expanded_size(node: yaml.Node, depth: int, sizes: dict[int, int]) -> int:
    """Count the values after aliases are expanded. Raises OverflowError for too many."""
    if id(node) not in sizes and depth <= _MAX_DEPTH:
        sizes[id(node)] = 0
        sizes[id(node)] = 1 + sum(_expanded_size(part, depth + 1, sizes) for part in parts_of(node))
    if not 0 < sizes.get(id(node), 0) <= _MAX_VALUES:
        raise OverflowError
    return sizes[id(node)]
