"""Open a user's vLLM configuration in any of its forms, and write tuned values into it.

The forms are tried in the order of `_find_commands`. What a form does not use, it names.
"""

from __future__ import annotations

import difflib
import json
import re
import shlex
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any, Final

import yaml

from mmcalib.configs import commands, manifests
from mmcalib.configs.commands import Command, Span, Unread, argument_of, split_choice, split_model
from mmcalib.configs.programs import read_program
from mmcalib.configs.shell import ORPHANS, Script
from mmcalib.engine.messages import ParseServeConfig
from mmcalib.errors import UsageError
from mmcalib.files import encoding_of, read_document
from mmcalib.models.gpus import Gpu
from mmcalib.options.run import DERIVED_ARGUMENTS, KEPT_ARGUMENTS
from mmcalib.text import describe_releases, one_line
from mmcalib.version import known_arguments, known_variables, vllm_version

_STARTERS: Final = re.compile(
    r"docker|podman|nerdctl|jobs|kubectl|env|sudo|exec|nohup|uvx?|vllm|python[\d.]*"
)
# vLLM's parser requires a model, and accepts any name.
PLACEHOLDER_MODEL: Final = "unnamed"
# A configuration with every option of `vllm serve` has some 300 lines.
_MAX_BYTES: Final = 1 << 18
# Values after YAML aliases are expanded, as vLLM expands them.
_MAX_VALUES: Final = 100_000
_MAX_DEPTH: Final = 50
# Blocks of a page, with the lines before each.
_MOST_CHARS: Final = 1 << 19
_FORMS: Final = (
    "vLLM's YAML, a Kubernetes manifest, a compose file, Helm values, a shell script, a systemd or "
    "Podman unit, a Dockerfile, a Python program with LLM(...), Markdown, or flags of vllm serve"
)
_HINT: Final = "mmcalib ... -- followed by the flags of vllm serve"
_OF_VLLM: Final = re.compile(r"VLLM_|PYTORCH_(?:CUDA_)?ALLOC_CONF$")
# A release of vLLM in an image's tag or a package's pin; others count their own.
_RELEASE: Final = re.compile(
    r"(?<!lmcache/)vllm(?!-runtime)[\w./-]*['\",]*"
    r"(?:(?:\[[^\]]*\])?==|[:@]|\s+tag: ['\"]?)(?:\$\{\w+:?-)?v?(0\.\d+\.\d+[\w.]*)"
)
# The image and a list of words of a Dockerfile, and a block of code in Markdown.
_FROM: Final = re.compile(r"(?m)^FROM\s+(?:--\S+\s+)?(\S+)")
_WORDS: Final = re.compile(r"(?ms)^(CMD|ENTRYPOINT)\s*(\[(?:[^\\\n]|\\.)*)")
_BLOCK: Final = re.compile(r"(?ms)^[ \t]*(```+|~~~+)[ {.]*(\w*)[^\n]*\n(.*?)^[ \t]*\1")
# A block of HCL, which Nomad and Terraform read, and no shell.
_HCL: Final = re.compile(r'(?m)^\s*\w+ (?:"[^"\n]*" )+\{$')
# Where systemd and supervisor keep variables of a command.
_SOURCE: Final = re.compile(r"(?m)^(EnvironmentFile|environment)\s*=")
# One variable of an environment file with flags, or of a unit with a command.
_VARIABLE: Final = re.compile(r"(?m)^[A-Za-z_]\w*=(?=[\"']?(.* )?--|\S*(vllm|python[\d.]*) )")
_QUOTED: Final = re.compile(r"(?m)^(\w+=)([\"'])((?:(?!\2).)*)\2$")
# A comment between lines that continue, which systemd and Docker skip.
_SKIPPED: Final = re.compile(r"(?m)(?<=\\\n)([ \t]*)[#;].*(?=\n)")


@dataclass(frozen=True, slots=True)
class WrittenConfiguration:
    """A configuration of `vllm serve` as written, before any release parses it.

    It is either the `config` file that vLLM itself reads, with its `settings`, or the flags
    `spell` in another form. The user's `flags` win over both. `spans` are places in `text`.
    `environment` names the variables of vLLM and of PyTorch's allocator that it sets, `releases`
    those of vLLM that it is for, `unread` is what mmcalib does not use of it, `repeated_keys` vLLM
    reads only once, and `broken` says why vLLM can read no file at all.
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
    unread: tuple[Unread, ...] = ()
    repeated_keys: tuple[str, ...] = ()
    broken: str = ""

    def notes(self, own: Mapping[str, str]) -> Iterator[str]:
        """Say what is not used, whose release it is, and what the `own` environment lacks."""
        yield from (f"{self.source}, {note}" for note in dict.fromkeys(self.unread))
        installed = (vllm_version() or "").partition("+")[0]
        if installed and (others := sorted({*self.releases} - {installed})):
            yield describe_releases(str(self.source), ", ".join(others), installed)
        known = known_variables() if self.environment else set()
        unknown = [n for n in self.environment if known and n[:5] == "VLLM_" and n not in known]
        if unknown:
            yield f"{self.source} sets {', '.join(unknown)}, which the installed vLLM does not read"
        if unset := [name for name in self.environment if name not in {*own, *unknown}]:
            yield f"{self.source} sets {', '.join(unset)}: export the same here to apply them"

    @property
    def model_name(self) -> str | None:
        return self.model or str(self.settings.get("model") or "") or None

    def no_model_error(self, where: str = "") -> UsageError:
        """Return the error for no model, with why the file's is left out, if that is known."""
        reasons = [note for note in self.unread if note.setting.endswith("model")] or self.unread
        why = "; ".join(map(str, reasons[:3]))
        said = f"no model given{where}{': ' if why else ''}{why}"
        return UsageError(said, hint="--model MODEL, or --config FILE with one")

    @property
    def left_out(self) -> list[str]:
        """The notes about settings whose value is unknown, and that no flag of the user's sets."""
        given = {"", *map(argument_of, self.flags), *(["model"] if self.model else [])}
        return [str(note) for note in self.unread if argument_of(note.setting) not in given]

    @property
    def every_flag(self) -> tuple[str, ...]:
        return (*self.file_flags, *self.flags)

    @property
    def parse_request(self) -> ParseServeConfig:
        """Return the request for vLLM's parser, with the model that it requires first."""
        is_in_file = self.model is None and "model" in self.settings
        model = () if is_in_file else (self.model or PLACEHOLDER_MODEL,)
        path = None if self.config is None else str(self.config)
        return ParseServeConfig(path, (*model, *self.flags), self.file_flags)

    def command(self, name: str, gpu: Gpu | str | None = None, *options: str) -> str:
        """Return the mmcalib command of this name for this configuration, with these options."""
        given = {"--model": self.model, "--config": self.source}
        words = [word for one, value in given.items() if value for word in (one, str(value))]
        words += ["--gpu", gpu] if isinstance(gpu, str) else shlex.split(gpu.flags) if gpu else []
        flags = ("--", *self.flags) if self.flags else ()
        return shlex.join(["mmcalib", name, *words, *options, *flags])

    def tune_text(self, engine_args: Mapping[str, Any], read: Mapping[str, Any]) -> str:
        """Return the text with mmcalib's arguments replaced; `read` are the values before."""
        text, edits, left = self.text, list[tuple[int, int, str]](), dict(engine_args)
        left.pop("model", None)
        for span in self.spans:
            name, gap = span.text, span.find_gap(text)
            is_kept = name in KEPT_ARGUMENTS and name not in engine_args
            if is_kept or name not in DERIVED_ARGUMENTS or engine_args.get(name) == read.get(name):
                continue
            if name in left:
                edits.append((span.start, span.end, span.spell(name, left.pop(name), gap)))
            else:
                edits.append((span.start - len(gap), span.end, ""))
        more = {name: value for name, value in left.items() if value != read.get(name)}
        if more and self.spans:
            # A chart has few fields of its own; other options go to its list of arguments.
            last = max(self.spans, key=lambda span: (span.form != "field", span.end))
            edits.append(last.add_options(text, more))
        for start, end, new in sorted(edits, reverse=True):
            text = text[:start] + new + text[end:]
        return text

    def diff(self, engine_args: Mapping[str, Any], read: Mapping[str, Any]) -> str:
        source = self.source and split_choice(self.source)[0]
        name = str(source) if self.spans and source else "vllm serve"
        written = self if self.spans else _as_command(self)
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
    if config is None and flags and commands.names_file(flags[0]):
        config, flags = Path(flags[0]), flags[1:]
    if config is None and "--config" in flags[:-1]:
        at = flags.index("--config")
        config, flags = Path(flags[at + 1]), [*flags[:at], *flags[at + 2 :]]
    model, flags = split_model(model, flags)
    written = WrittenConfiguration(config, "", model, flags=tuple(flags))
    if config is None:
        return _as_command(written)
    path, choice = split_choice(config)
    try:
        text, documents, notes = _read(path)
        found, what = _find_commands(path, text, documents)
    except (RecursionError, OverflowError) as error:
        raise UsageError(f"--config {path} is nested or grows too much", hint=_HINT) from error
    written = replace(written, text=text, unread=tuple(notes))
    if found:
        return _from_command(written, commands.choose_command(found, path, choice))
    if what:
        raise UsageError(f"--config {path} has no {what}", hint=_HINT)
    if choice:
        raise UsageError(f"{path} is one configuration, without {choice}", hint=f"--config {path}")
    return _from_vllm_file(written, documents)


def _find_commands(
    path: Path, text: str, documents: Sequence[yaml.Node]
) -> tuple[list[Command], str]:
    """Return the commands that start vLLM, and what they are; nothing for vLLM's own YAML."""
    if path.suffix == ".py":
        what = "call or command that starts vLLM, for Python to parse"
        return read_program(text, _read_line), what
    if path.suffix == ".md":
        return [*_read_blocks(text)], "block of code that starts vLLM"
    if path.suffix == ".ipynb":
        hint = f"jupyter nbconvert --to script {path}, and --config with what it writes"
        raise UsageError(f"--config {path} is a notebook", hint=hint)
    objects = [manifests.read_object(root, text) for root in manifests.join_runtimes(documents)]
    if any(servers is not None for servers in objects):
        found = [server for servers in objects for server in servers or ()]
        return found, "container with vLLM's flags in command or args"
    keys = " ".join(manifests.fields_of(documents[0])) if documents else ""
    if path.suffix in (".yaml", ".yml", ".json") or re.fullmatch(r"[A-Za-z][\w .+-]*", keys):
        return [], ""
    is_script = text[:2] == "#!" or path.suffix == ".sh" or _FROM.search(text) is not None
    what = "command that starts vLLM" if is_script else f"form that mmcalib reads: {_FORMS}"
    if _HCL.search(text) and not is_script:
        return [], what
    # As Windows' shells continue a line.
    text = re.sub(r"(?<= )[`^](?=\n)", r"\\", text)
    return _read_dockerfile(text) if _FROM.search(text) else _read_script(text, 0), what


def _read_dockerfile(text: str) -> list[Command]:
    """Read the command that its last lists of words make together, or a line for a shell."""
    text = re.sub("(?m)^(ENV|ARG) ", "export ", _SKIPPED.sub(r"\1\\", text))
    if not (lists := {found[1]: found for found in _WORDS.finditer(text)}):
        return _read_script(text, None)
    parts = [lists[name][2] for name in ("ENTRYPOINT", "CMD") if name in lists]
    try:
        words = [word for part in parts for word in json.loads(part.replace("\\\n", ""))]
        # Without a program of its own, it starts the image's.
        start = ["docker", "run", *_FROM.findall(text)[-1:]] if "ENTRYPOINT" not in lists else []
        command = shlex.join([*start, *words]) if words else ""
    except (ValueError, TypeError):
        return []
    last = max(found.start() for found in lists.values())
    script = _WORDS.sub(lambda m: command * (m.start() == last) + "\n" * m[0].count("\n"), text)
    return _read_script(script, None)


def _read_line(script: str, line: int) -> list[Command]:
    return Script(script, {}, None, line).find_servers() if "vllm" in script else []


def _read_blocks(text: str) -> Iterator[Command]:
    """Yield the servers in Markdown's blocks of commands, Python and YAML, each read by itself."""
    left = _MOST_CHARS
    for block in _BLOCK.finditer(text):
        before, code, found = text[: block.start(3)].count("\n"), block[3], list[Command]()
        whole = "\n" * before + textwrap.dedent(code)
        left -= len(whole) * block[2].startswith(("py", "y"))
        if left < 0:
            raise OverflowError
        if re.fullmatch("(ba|z)?sh|shell|console|text|", block[2]):
            found = Script(code, {}, block.start(3), before + 1).find_servers()
        elif block[2] in ("py", "python"):
            found = read_program(whole, _read_line)
        elif block[2] in ("yaml", "yml"):
            with suppress(yaml.YAMLError):
                for root in yaml.compose_all(whole, yaml.SafeLoader):
                    _expanded_size(root, 0, {}, [])
                    found += manifests.read_object(root, whole) or ()
        for one in found:
            is_yaml = block[2].startswith("y")
            words = [Span(w.text, line=w.line) for w in one.words] if is_yaml else one.words
            yield replace(one, words=words, extent=block.span())


def _read_script(text: str, offset: int | None) -> list[Command]:
    """Read the commands of a script or unit, or flags alone, also in a file's variable."""
    image = re.search(r"(?m)^Image=(\S+)", text)
    if image and "\nExec=" in text:
        # Podman's unit has only the words after an image.
        entry = re.search(r"(?m)^Entrypoint=\S+", text)
        start = f"\ndocker run {'--' + entry[0].lower() if entry else ''} {image[1]} "
        text, offset = text.replace("\nExec=", start), None
    if is_supervisor := "[program:" in text:
        text = re.sub(r"\n[ \t](?=[ \t]*\S)", r"\\\n", text)
    is_unit = "\nExecStart=" in text or image is not None or is_supervisor
    if not is_unit and (found := Script(text, {}, offset).find_servers()):
        return found
    environment = dict[str, str]()
    if is_unit:
        text = _SKIPPED.sub(lambda line: " " * (len(line[0]) - 1) + "\\", text)
        if not re.search(r"\bsh -\w*c\b", text) and re.search(r"[ \t]#", text):
            # It begins a comment only for a shell.
            text, offset = re.sub(r"(?<=[ \t])#", r"\#", text), None
        with suppress(ValueError):
            pairs = shlex.split(" ".join(re.findall("(?m)^Environment=(.*)", text)))
            environment = dict(pair.split("=", 1) for pair in pairs)
        # Systemd has no defaults.
        environment[commands.OTHERS] = "is not set in the unit"
        if source := _SOURCE.search(text):
            environment[commands.OTHERS] = f"may be set by {source[1]}, which is not read"
        text = re.sub(
            r"(?m)^(?:Environment|Exec(?!Start=)\w+)=.*", lambda line: " " * len(line[0]), text
        )
    plain = _QUOTED.sub(lambda m: f"{m[1]} {m[3]} " if "--" in m[3] else m[0], text)
    plain = _VARIABLE.sub(lambda name: " " * len(name[0]), plain)
    script = Script(plain, environment, offset)
    words = [word for command in script.commands for word in command.words]
    others = [one for one in script.commands[1:] if not one.words[0].text.startswith("--")]
    is_first = len(words) > 1 and any(word.text.startswith("--") for word in words[:2])
    if not is_first or others or any(one.environment for one in script.commands):
        return script.find_servers()
    variables = {} if plain == text else dict.fromkeys(re.findall(r"(?m)^(\w+)=", text), "")
    notes = [note for note in script.notes if note.text != ORPHANS]
    return Command(words, notes, script.commands[0].line, variables).find_server(starts=True)


def extract_serve_flags(words: Sequence[str]) -> list[str]:
    """Find the words of `vllm serve` in a pasted command. Raises UsageError for other programs."""
    # A line continuation that a blank or nothing follows arrives as a word of its own.
    pasted = [word for word in words if not word or word.strip("\\ \t\r\n")]
    if len(pasted) == 1 and re.search(r"\s-", pasted[0]):
        found = _read_script(re.sub(r"\\[ \t]*\r?\n", " ", pasted[0]).strip(), None)
        if len(found) != 1 or found[0].unread:
            why = found[0].unread[0] if len(found) == 1 else f"it has {len(found)} commands"
            raise UsageError(f"the pasted command is not read: {why}", hint="--config FILE with it")
        pasted = [word.text for word in found[0].words]
    place = commands.serve_slice(pasted)
    pasted = pasted[place or slice(None)]
    while place is None and pasted and re.match(r"[A-Za-z_]\w*=", pasted[0]):
        del pasted[0]
    first = pasted[0] if pasted else ""
    if _STARTERS.fullmatch(Path(first).name):
        said = f"{first} ... does not start vllm serve as far as mmcalib can tell"
        raise UsageError(said, hint="after --, type only the flags of vllm serve")
    return pasted


def _from_command(written: WrittenConfiguration, command: Command) -> WrittenConfiguration:
    texts = [word.text for word in command.words]
    if lines := [one.line for one in command.words if one.text.partition("=")[0] == "--config"]:
        raise UsageError(
            f"--config {written.source} starts vLLM with another --config file on line {lines[0]}",
            hint=f"name your copy of it in: mmcalib ... -- {shlex.join(texts)}",
        )
    own_model, flags = split_model(None, texts)
    unread = [*written.unread, *command.unread]
    is_unit = re.search(r"(?m)^(ExecStart=|\[program:)", written.text) is not None
    options = [(w.text.partition("=")[0], w) for w in command.words if w.text[:2] == "--"]
    again, last = "is given again, and only the last is read", dict(options)
    unread += (Unread(w.line, f"{name} {again}") for name, w in options if last[name] is not w)
    found = map(_SOURCE.match, written.text.splitlines() if is_unit else ())
    unread += (Unread(at, f"{one[1]} is not read") for at, one in enumerate(found, 1) if one)
    if own_model and command.model and own_model != command.model:
        which = f"{command.model} is not read, but --model {own_model}"
        unread.append(Unread(command.line, which))
    has_places = all(word.start >= 0 for word in command.words)
    around = written.text[slice(*command.extent)]
    releases = {*_RELEASE.findall(re.sub(r"(?m)^\s*#.*", "", around))}
    return replace(
        written,
        model=written.model or own_model or command.model,
        file_flags=flags,
        spans=commands.option_spans(command.words) if has_places else (),
        environment=tuple(sorted(filter(_OF_VLLM.match, command.environment))),
        releases=tuple(sorted(releases)),
        unread=tuple(unread),
    )


def _as_command(of: WrittenConfiguration) -> WrittenConfiguration:
    """Return it as a command with an option on each line."""
    text, words = "vllm serve", list[Span]()
    for word in [*([of.model] if of.model else []), *of.every_flag]:
        # JSON stays quoted, on its own line.
        text += " \\\n    " if word.startswith("-") else " "
        words.append(Span(word, len(text), len(text := text + shlex.quote(word))))
    return replace(of, text=f"{text}\n", spans=commands.option_spans(words))


def _from_vllm_file(
    written: WrittenConfiguration, roots: Sequence[yaml.Node]
) -> WrittenConfiguration:
    """Read a file for vLLM's own --config."""
    settings: Any = None
    broken, text = "the file is empty: vllm serve fails", written.text
    try:
        settings = yaml.safe_load(text)
    except yaml.YAMLError as error:
        words = " ".join(str(error).split()).replace('in "<unicode string>", ', "in ")
        what = "YAML until it is rendered" if "{{" in text else "YAML"
        broken = f"it is not {what}: {words}"
    except (ValueError, OverflowError) as error:
        # Impossible dates, and numbers out of range.
        broken = f"a value cannot be read: {one_line(str(error))}"
    if isinstance(settings, dict):
        odd = [key for key in settings if not isinstance(key, str)]
        broken = f"the key {odd[0]!r} is not a string: vllm serve fails" if odd else ""
    elif settings is not None:
        broken = "not a YAML mapping: vllm serve fails"
    _reject_foreign(written, settings if isinstance(settings, list) else [settings])
    written = replace(written, config=written.source, broken=broken)
    if broken:
        return written
    root = roots[0]
    if manifests.is_flow(root):
        text = yaml.safe_dump(settings, sort_keys=False)
        root = yaml.compose(text, yaml.SafeLoader) or root
    keys = [key.value for key, _ in root.value]
    spans = tuple(
        Span(argument_of(str(key.value)), key.start_mark.index, manifests.end_of(value), 0, "entry")
        for key, value in root.value
    )
    repeated = tuple(key for key in dict.fromkeys(keys) if keys.count(key) > 1)
    return replace(written, text=text, settings=settings, spans=spans, repeated_keys=repeated)


def _reject_foreign(written: WrittenConfiguration, documents: Sequence[Any]) -> None:
    """Raise UsageError for a file of another program: most keys are not vLLM's, one is nested."""
    pairs = {key: one[key] for one in documents if isinstance(one, dict) for key in one}
    known = known_arguments()
    others = [key for key in pairs if known and str(key).replace("-", "_") not in known]
    values = map(pairs.get, others)
    is_nested = any(isinstance(one, dict | list) or "vllm" in str(one) for one in values)
    if is_nested and 2 * len(others) > len(pairs):
        what = "is not vLLM's YAML: it has " + ", ".join(f"`{key}`" for key in others[:4])
        said = f"--config {written.source} {what}. mmcalib reads {_FORMS}"
        raise UsageError(said, hint=_HINT)


def _read(path: Path) -> tuple[str, list[yaml.Node], list[Unread]]:
    """Return the file's text, its YAML documents and notes about these. Raises UsageError."""
    if not path.is_file():
        hint = "pass the file that vllm serve reads"
        raise UsageError(f"--config {path}: no such file", hint=hint)
    documents, notes = list[yaml.Node](), list[Unread]()
    try:
        data = read_document(path, _MAX_BYTES)
        if data[:2] == b"#!" and b"\r\n" in data:
            notes.append(Unread(1, "no shell starts a script with Windows' line endings"))
        text = data.decode(encoding_of(data)).replace("\r\n", "\n")
        # Compose without tags, so that YAML constructs no objects yet.
        for root in yaml.compose_all("" if path.suffix == ".md" else text, yaml.SafeLoader):
            for one in chain([root], manifests.inner_documents(root)):
                _expanded_size(one, 0, {}, notes)
                documents.append(one)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        if mark and any(isinstance(root, yaml.MappingNode) for root in documents):
            notes.append(Unread(1 + mark.line, "YAML ends here; read in part"))
    except OSError as error:
        raise UsageError(f"--config {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"--config {path} is not UTF-8 text") from error
    return text, documents, notes


def _expanded_size(node: yaml.Node, depth: int, sizes: dict[int, int], notes: list[Unread]) -> int:
    """Count the values after aliases are expanded, and note keys that are repeated.

    Raises OverflowError for too many values.
    """
    if id(node) not in sizes and depth <= _MAX_DEPTH:
        parts = manifests.parts_of(node)
        keys = parts[::2] if isinstance(node, yaml.MappingNode) else []
        last = {str(key.value): key for key in keys}
        notes += (
            Unread(
                key.start_mark.line + 1, f"{key.value} is given again, and only the last is read"
            )
            for key in keys
            if last[str(key.value)] is not key and key.value != "<<"
        )
        sizes[id(node)] = 0
        sizes[id(node)] = 1 + sum(_expanded_size(p, depth + 1, sizes, notes) for p in parts)
    if not 0 < sizes.get(id(node), 0) <= _MAX_VALUES:
        raise OverflowError
    return sizes[id(node)]
