"""Commands that start vLLM: their words, what in these cannot be known, and which is meant."""

from __future__ import annotations

import json
import os
import re
import shlex
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path, PurePath
from typing import Any, Final, NamedTuple

import yaml

from mmcalib.errors import UsageError
from mmcalib.results.engine_yaml import yaml_entry
from mmcalib.text import one_line, serve_option

_MODULES: Final = ("vllm.entrypoints.openai.api_server", "dynamo.vllm")
_PROGRAM: Final = re.compile(r"vllm(@.*)?|vllm\.entrypoints\.cli\.main")
# A container image of vLLM, and the options of `docker run` that take no value and may precede it.
_IMAGE: Final = re.compile(
    r"(?:docker://)?(?:[\w.-]+(?::\d+)?/)?(?:[^\s:=]+/)*[\w.-]*vllm[\w.-]*(?:[:@][\w.:-]+)?"
)
_SWITCHES: Final = re.compile(
    r"--?[\w-]+=.*|-[itdP]+|--(?:rm|init|detach|interactive|tty|privileged|nv)"
)
_ASSIGNMENT: Final = re.compile(r"(?:--env=|-e)?([A-Za-z_]\w*)=(.*)", re.S)
_CONTAINERS: Final = {"docker", "podman", "nerdctl", "jobs", "apptainer", "singularity"}
# Programs that a container may run instead of its image's own.
_INSTEAD: Final = re.compile(r"(?:--entrypoint=)?(?:[^\s:=]*/)?(?:(?:ba|da|z)?sh|python[\d.]*)")
_SUFFIX: Final = re.compile(r"\.(ya?ml|json|sh|bash|sbatch|service|py|md|env|args)")

# What stands before an option in YAML and is removed with it. Other forms are scripts.
_GAPS: Final[Mapping[str, str]] = {
    "entry": r"\n[^\n]*\Z",
    "item": r"\n\s*-\s*\Z",
    "list": r",\s*\Z",
    "field": r"\n\s*\w+:\s*\Z",
}
# Characters before a word in which its gap is searched.
_NEAR: Final = 1_000
# A reason stands in the text itself, without spaces, so that it goes wherever a shell or a manifest
# puts the value of a variable. Unicode keeps these characters free.
_BEGIN, _END = "\ufdd0", "\ufdd2"
# Has in an environment, in place of a name, why variables that it lacks may be set.
OTHERS: Final = "*"
# Nor may the reason's own characters mean anything to a shell.
HIDDEN: Final = {ord(c): chr(0xE000 + ord(c)) for c in map(chr, range(128)) if not c.isalnum()}
_SHOWN: Final = {ord(hidden): chr(plain) for plain, hidden in HIDDEN.items()}
# With the brackets hidden; the last are systemd's.
_TEMPLATE: Final = re.compile(
    r"\{\{[^{}]*\}\}|%?[\ue028\ue03c][^\ue028\ue029\ue03c\ue03e]*[\ue029\ue03e]s?"
    r"|%[A-Z][A-Z_0-9]+%|\$\{\w+\}|%[hHiInuU]\b"
)
_WHOLE: Final = re.compile("--no-|--[^=]+=")
_BARE: Final = re.compile("-[^=]*$")
_REASON: Final = re.compile(f"{_BEGIN}([^{_BEGIN}{_END}]*){_END}")


@dataclass(frozen=True, slots=True)
class Span:
    """A word, or an option (named by its argument) with its values, and its place in the text.

    The place is -1 if the text spells the word differently. `form` is the entry, item, list or
    field of YAML that it is in, or YAML's quote around a script (`|` for none).
    """

    text: str
    start: int = -1
    end: int = -1
    line: int = 0
    form: str = "|"

    def find_gap(self, text: str) -> str:
        """Return what separates it from the option before it, if anything."""
        near = text[max(0, self.start - _NEAR) : self.start]
        gap = re.search(_GAPS.get(self.form, r"\s*(\\\n)?\s*\Z"), near)
        return gap[0] if gap else ""

    def spell(self, name: str, value: Any, gap: str) -> str:
        """Spell an option as this place requires; the `gap` separates items."""
        words = serve_option(name, value)
        match self.form:
            case "field":
                return json.dumps(value)
            case "entry":
                return yaml_entry(name, value).rstrip("\n")
            case "item" | "list":
                return (", " if self.form == "list" else gap).join(map(_yaml_word, words))
            case "":
                # A colon before a space would end a plain scalar.
                dumps = partial(json.dumps, separators=(",", ":"))
                words = [w if w[0] not in "[{" else dumps(json.loads(w)) for w in words]
        line = shlex.join(words)
        return {"'": line.replace("'", "''"), '"': json.dumps(line)[1:-1]}.get(self.form, line)

    def add_options(self, text: str, more: Mapping[str, Any]) -> tuple[int, int, str]:
        """Return the edit (start, end, text) that adds these options after this one."""
        at, gap = self.end, self.find_gap(text) or {"entry": "\n", "list": ", "}.get(self.form, " ")
        if self.form in ("entry", "item", "field"):
            at = (text + "\n").index("\n", at)
        new = "".join(gap + self.spell(*option, gap) for option in more.items())
        if self.form == "field":
            words = [word for option in more.items() for word in serve_option(*option)]
            indent = gap[: len(gap) - len(gap.lstrip())]
            new = f"{indent}extraArgs: [{', '.join(map(_yaml_word, words))}]"
        return at, at, new


def _yaml_word(word: str) -> str:
    return yaml.safe_dump([word], default_flow_style=True, width=1 << 20, allow_unicode=True)[1:-2]


def option_spans(words: Sequence[Span]) -> tuple[Span, ...]:
    """Join each option and its values."""
    spans = list[Span]()
    for word in words:
        if word.text.startswith("-") or not spans:
            name = argument_of(word.text) if word.text.startswith("-") else ""
            spans.append(replace(word, text=name))
        else:
            spans[-1] = replace(spans[-1], end=word.end)
    return tuple(spans)


def argument_of(option: str) -> str:
    """Return the argument that an option sets, by its spelling: `--a-b.c=1` sets a_b."""
    return option.lstrip("-").partition("=")[0].partition(".")[0].replace("-", "_")


class Unread(NamedTuple):
    """What is not used of the text, and its line; `setting` is left out, its value is unknown."""

    line: int
    text: str
    setting: str = ""

    def __str__(self) -> str:
        return f"line {self.line}: {self.text}"


def leave_out(line: int, what: str, why: str) -> Unread:
    setting = what.removeprefix("the ")
    return Unread(line, f"{what} is left out: {why}", "" if " " in setting else setting)


@dataclass(frozen=True, slots=True)
class Command:
    """The words of a command in a container, script or program, and what is around them.

    `unread` is what of it is not used. `name` is its container's, `model` what that names;
    a guess is that the container is vLLM's. `call` is the line that calls its function, if any.
    `extent` is the text around it that may name vLLM's release.
    """

    words: Sequence[Span]
    unread: Sequence[Unread]
    line: int
    environment: Mapping[str, str] = field(default_factory=dict)
    name: str = ""
    model: str | None = None
    is_guess: bool = False
    call: int = 0
    extent: tuple[int, int | None] = (0, None)

    @property
    def title(self) -> str:
        model = next(iter(split_models([word.text for word in self.words])[0]), self.model)
        where = f"line {self.line}"
        return f"{self.name} ({where}, {model})" if self.name else f"{where} ({model})"

    def find_server(self, *, starts: bool = False) -> list[Command]:
        """Return the server that it starts, if any; all its words if it `starts` one anyway."""
        texts = [_TEMPLATE.sub("_", without_marks(word.text, "_")) for word in self.words]
        place = serve_slice(texts) or (slice(0, None) if starts else None)
        if place is None or "--help" in texts:
            return []
        given, kept, unread = self.find_environment(place.start), *keep_known(self.words[place])
        files = [w for w in self.words[: place.start] if w.text.partition("=")[0] == "--env-file"]
        unread = [*self.unread, *(Unread(w.line, "--env-file is not read") for w in files), *unread]
        return [replace(self, words=kept, unread=unread, environment=given)]

    def find_environment(self, end: int) -> dict[str, str]:
        """Return its variables with those that its words before this place set."""
        pairs = filter(None, (_ASSIGNMENT.fullmatch(word.text) for word in self.words[:end]))
        given = {**self.environment, **{pair[1]: pair[2] for pair in pairs}}
        if any(word.text.partition("=")[0] == "--env-file" for word in self.words[:end]):
            given[OTHERS] = f"may be set by --env-file on line {self.line}"
        return given


def split_models(flags: Sequence[str], model: str | None = None) -> tuple[list[str], list[str]]:
    """Separate models, the given one first, from other words of `vllm serve`."""
    models, rest, before = [model] if model else [], list[str](), "--no-"
    for word in (words := iter(flags)):
        name, _, value = word.partition("=")
        value = (value or next(words, "")) if name == "--model" else ""
        # One alone may also follow an option that takes no value, or has one already.
        is_bare = word[:1] != "-" and (before == "--no-" or not models)
        value = word if is_bare and _WHOLE.match(before) else value
        (models if value else rest).append(value or word)
        before = word
    return models, rest


def split_model(model: str | None, flags: Sequence[str]) -> tuple[str | None, tuple[str, ...]]:
    """Separate the model from other flags. Raises UsageError for two different models."""
    models, rest = split_models(flags, model)
    first, *others = list(dict.fromkeys(models)) or [""]
    if others:
        raise UsageError(f"two different models: {first} and {others[0]}", hint=f"--model {first}")
    return first or None, tuple(rest)


def serve_slice(words: Sequence[str]) -> slice | None:
    """Locate the words for `vllm serve` in a command; None if it does not start vLLM."""
    pairs = list(zip(["", *words], words, strict=False))
    for at, (before, word) in enumerate(pairs, 1):
        if word in _MODULES or (word == "serve" and _PROGRAM.fullmatch(PurePath(before).name)):
            return slice(at, None)
    runners = {PurePath(before).name for before, word in pairs if word in ("run", "create")}
    images = [word.removeprefix("--image=") for word in words]
    if "kubectl" in runners and "--" in words and any(map(_IMAGE.fullmatch, images)):
        return slice(words.index("--") + 1, None)
    if re.search(r"--entrypoint[ =](?!\S*vllm)\S", " ".join(words)):
        return None
    for at, (before, word) in enumerate(pairs if runners & _CONTAINERS else (), 1):
        if _IMAGE.fullmatch(word) and (before[:1] != "-" or _SWITCHES.fullmatch(before)):
            if any(map(_INSTEAD.fullmatch, words[: at + 1])):
                return None
            return slice(at + (words[at : at + 1] == ["serve"]), None)
    return None


def mark_unknown(what: str, why: str) -> str:
    """Return what stands in a word for a value that is unknown for this reason."""
    reason = f"{textwrap.shorten(what, 60, placeholder=' …')} {why}"
    return f"{_BEGIN}{without_marks(reason).translate(HIDDEN)}{_END}"


def without_marks(text: str, unknown: str = "") -> str:
    return _REASON.sub(unknown, text)


def keep_known(words: Sequence[Span]) -> tuple[list[Span], list[Unread]]:
    """Separate words that are known from notes about the others.

    An option whose value is unknown is left out with it.
    """
    kept, notes, is_left_out = list[Span](), list[Unread](), False
    for word in words:
        is_option = word.text.startswith("-")
        unknown, others = _REASON.findall(word.text), _TEMPLATE.findall(without_marks(word.text))
        unknown += [f"{one} is not filled in" for one in others]
        if unknown:
            is_left_out = bool(kept) and not is_option and bool(_BARE.match(kept[-1].text))
            what = kept.pop().text if is_left_out else without_marks(word.text).partition("=")[0]
            what = what if is_left_out or is_option else "another word" if kept else "the model"
            why = one_line(", ".join(unknown).translate(_SHOWN))
            notes.append(leave_out(word.line, what, why))
            is_left_out = is_left_out or (is_option and "=" not in without_marks(word.text))
        elif is_option or not is_left_out:
            is_left_out = False
            kept.append(word)
    return kept, notes


def split_choice(path: Path) -> tuple[Path, str]:
    """Split FILE#NAME or FILE:LINE; the choice is empty for a file of the whole name."""
    chosen = re.fullmatch(r"(.+?)(#.+|:\d+)", str(path))
    return (path, "") if chosen is None or path.exists() else (Path(chosen[1]), chosen[2])


def names_file(word: str) -> bool:
    """Return True for the name of a configuration's file, as FILE, FILE#NAME or FILE:LINE."""
    path = split_choice(Path(word))[0]
    return bool(_SUFFIX.fullmatch(path.suffix)) or (os.path.isfile(path) and path.suffix != ".gguf")


def choose_command(commands: Sequence[Command], path: Path, choice: str) -> Command:
    """Return the chosen command. Raises UsageError unless exactly one fits the choice."""
    keys = [[f"#{one.name}"] * bool(one.name) + [f":{one.line}"] for one in commands]
    found = [one for one, own in zip(commands, keys, strict=True) if not choice or choice in own]
    if len(found) == 1:
        return found[0]
    listed = ", ".join(command.title for command in found or commands)
    has = f"{len(found)} commands that start vLLM" if found else f"no command {choice}, but"
    every = [key for own in keys for key in own]
    first = next((key for key in every if every.count(key) == 1), "")
    hint = f"choose one: --config {path}{first}" if first else "write each on a line of its own"
    raise UsageError(f"--config {path} has {has}: {listed}", hint=hint)
