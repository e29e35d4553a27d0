"""Find the commands that start vLLM, and let the user choose if a file has several."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath
from typing import Final

from mmcalib.configs.shell import Script
from mmcalib.configs.words import Span, keep_known, without_marks
from mmcalib.errors import UsageError

_SERVER: Final = "vllm.entrypoints.openai.api_server"
_PROGRAMS: Final = ("vllm", "vllm.entrypoints.cli.main")
# A container image of vLLM, and the options of `docker run` that take no value and may precede it.
_IMAGE: Final = re.compile(
    r"(?:[\w.-]+(?::\d+)?/)?(?:[^\s:=]+/)*[\w.-]*vllm[\w.-]*(?:[:@][\w.:-]+)?"
)
_SWITCHES: Final = re.compile(
    r"--?[\w-]+=.*|-[itdP]+|--(?:rm|init|detach|interactive|tty|privileged)"
)
# A release of vLLM in an image's tag or a package's pin.
_RELEASE: Final = re.compile(r"vllm[\w./-]*(?:(?:\[[^\]]*\])?==|:)v?(0\.\d+\.\d+[\w.]*)")
_ASSIGNMENT: Final = re.compile(r"(?:--env=|-e)?([A-Za-z_]\w*)=(.*)", re.S)
_CONTAINERS: Final = ("docker", "podman", "nerdctl", "jobs")
_STARTERS: Final = (*_CONTAINERS, "kubectl", "env", "sudo", "exec", "nohup", "uv", "uvx", "vllm")
_FILE: Final = re.compile(r".+\.(?:ya?ml|json|sh|bash|sbatch|py|env|args)(?:#.+|:\d+)?")


@dataclass(frozen=True, slots=True)
class Command:
    """The words for `vllm serve` in a container, script or program, and what is around them.

    `name` is its container's or service's. `unread` notes say what of it is not used. `releases`
    are those of vLLM that its image or package names.
    """

    words: Sequence[Span]
    unread: Sequence[str]
    line: int
    name: str = ""
    model: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    releases: Sequence[str] = ()

    @property
    def title(self) -> str:
        own = _split_models([word.text for word in self.words])[0]
        where = f"line {self.line}"
        model = next(iter(own), self.model or "no model")
        return f"{self.name} ({where}, {model})" if self.name else f"{where} ({model})"


def _split_models(flags: Sequence[str]) -> tuple[list[str], list[str]]:
    """Separate models from other words of `vllm serve`."""
    words, models, rest = list(flags), list[str](), list[str]()
    if words and not words[0].startswith("-"):
        models.append(words.pop(0))
    while words:
        word = words.pop(0)
        if word == "--model" and words:
            models.append(words.pop(0))
        elif word.startswith("--model="):
            models.append(word.partition("=")[2])
        else:
            rest.append(word)
    return models, rest


def split_model(model: str | None, flags: Sequence[str]) -> tuple[str | None, tuple[str, ...]]:
    """Separate the model from other flags. Raises UsageError for two different models."""
    own, rest = _split_models(flags)
    models = [*([] if model is None else [model]), *own]
    if len(set(models)) > 1:
        raise UsageError(
            f"two different models: {models[0]} and {models[1]}", hint=f"--model {models[0]}"
        )
    return (models[0] if models else None), tuple(rest)


def find_command(
    words: Sequence[Span], environment: Mapping[str, str], line: int, *, starts: bool = False
) -> Command | None:
    """Return the server that a command starts, or all words if it `starts` one anyway."""
    texts = [without_marks(word.text, "_") for word in words]
    place = _serve_slice(texts)
    if place is None and not starts:
        return None
    place = place or slice(0, None)
    pairs = (_ASSIGNMENT.fullmatch(text) for text in texts[: place.start])
    given = {pair[1]: pair[2] for pair in pairs if pair}
    return Command(*keep_known(words[place]), line, environment={**environment, **given})


def find_releases(texts: Sequence[str]) -> list[str]:
    return [match[1] for text in texts for match in _RELEASE.finditer(text)]


def find_script_commands(script: Script) -> list[Command]:
    """Find the servers that a script starts; each has the notes of the whole script."""
    found = (find_command(one.words, one.environment, one.line) for one in script.commands)
    releases = find_releases([word.text for one in script.commands for word in one.words])
    notes = [
        f"line {one.line}: options of no command: a blank line or comment before them ends it"
        for one in script.commands
        if one.words[0].text.startswith("--")
    ]
    notes += script.notes
    return [replace(c, unread=(*notes, *c.unread), releases=releases) for c in found if c]


def _serve_slice(words: Sequence[str]) -> slice | None:
    """Locate the words for `vllm serve` in a command; None if it does not start vLLM."""
    pairs = list(zip(["", *words], words, strict=False))
    starts = [
        at + 1
        for at, (before, word) in enumerate(pairs)
        if word == _SERVER or (word == "serve" and PurePath(before).name in _PROGRAMS)
    ]
    programs = {PurePath(before).name for before, word in pairs if word in ("run", "create")}
    if not starts and "kubectl" in programs and "--" in words:
        images = [word.removeprefix("--image=") for word in words]
        starts = [words.index("--") + 1] if any(map(_IMAGE.fullmatch, images)) else []
    elif not starts and not programs.isdisjoint(_CONTAINERS):
        starts = [
            at + 1 + (words[at + 1 : at + 2] == ["serve"])
            for at, (before, word) in enumerate(pairs)
            if _IMAGE.fullmatch(word) and (before[:1] != "-" or _SWITCHES.fullmatch(before))
        ]
    return slice(starts[0], None) if starts else None


def extract_serve_flags(words: Sequence[str]) -> list[str]:
    """Find the words of `vllm serve` in a pasted command. Raises UsageError for other programs."""
    # A line continuation that a blank or nothing follows arrives as a word of its own.
    pasted = [word for word in words if not word or word.strip("\\ \t\r\n")]
    if len(pasted) == 1 and re.search(r"\s-", pasted[0]):
        text = re.sub(r"\\[ \t]*\r?\n", " ", pasted[0]).strip()
        script = Script(text, {}, None)
        found = find_script_commands(script) or [
            Command(*keep_known(c.words), c.line) for c in script.commands
        ]
        if len(found) != 1 or found[0].unread:
            why = found[0].unread[0] if len(found) == 1 else f"it has {len(found)} commands"
            raise UsageError(f"the pasted command is not read: {why}", hint="--config FILE with it")
        pasted = [word.text for word in found[0].words]
    place = _serve_slice(pasted)
    pasted = pasted[place or slice(None)]
    while place is None and pasted and re.match(r"[A-Za-z_]\w*=", pasted[0]):
        del pasted[0]
    first = pasted[0] if pasted else ""
    if first and (Path(first).name in _STARTERS or re.match(r"(.*/)?python[\d.]*$", first)):
        raise UsageError(
            f"{first} ... does not start vllm serve as far as mmcalib can tell",
            hint="after --, type only the flags of vllm serve",
        )
    return pasted


def names_file(word: str) -> bool:
    """Return True for the name of a configuration's file, as FILE, FILE#NAME or FILE:LINE."""
    return _FILE.fullmatch(word) is not None


def split_choice(path: Path) -> tuple[Path, str]:
    """Split FILE#NAME or FILE:LINE; the choice is empty for a file of the whole name."""
    chosen = re.fullmatch(r"(.+?)(#.+|:\d+)", str(path))
    return (path, "") if chosen is None or path.exists() else (Path(chosen[1]), chosen[2])


def choose_command(commands: Sequence[Command], path: Path, choice: str) -> Command:
    """Return the chosen command. Raises UsageError unless exactly one fits the choice."""
    keys = [
        (f"#{command.name}" if command.name else "", f":{command.line}", f"#{number}")
        for number, command in enumerate(commands, 1)
    ]
    found = [at for at, own in enumerate(keys) if not choice or choice in own]
    if len(found) == 1:
        return commands[found[0]]
    every = [key for own in keys for key in own]
    first = next(key for key in keys[found[0] if found else 0] if key and every.count(key) == 1)
    listed = ", ".join(commands[at].title for at in found or range(len(commands)))
    has = f"{len(found)} commands that start vLLM" if found else f"no command {choice}, but"
    raise UsageError(
        f"--config {path} has {has}: {listed}", hint=f"choose one: --config {path}{first}"
    )
