"""Flags of `vllm serve` as they are pasted behind --: the model that they name, and what to type in
place of those that the installed vLLM refuses.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Final

from mmcalib.derive.retired import RetiredKnob, retired_among, retired_in
from mmcalib.errors import UsageError
from mmcalib.wording import one_line

_COMMAND: Final = ("vllm", "serve")
_UNKNOWN: Final = "unrecognized arguments: "
_ARGUMENT: Final = re.compile(r"argument (?:-\w+/)*--(?P<option>[\w-]+)")
# How older releases spelled limits: image=2,video=1.
_PAIRS: Final = re.compile(r"Value (?P<pairs>\w+=\d+(?:,\w+=\d+)*) cannot be")


def model_beside(model: str | None, flags: Sequence[str]) -> tuple[str | None, tuple[str, ...]]:
    """The model, which the flags may name as `vllm serve` lets them, and the flags without it.
    Raises UsageError where two are named.
    """
    words = list(flags)
    if tuple(words[:2]) == _COMMAND:
        del words[:2]
    named = [] if model is None else [model]
    if words and not words[0].startswith("-"):
        named.append(words.pop(0))
    rest: list[str] = []
    while words:
        word = words.pop(0)
        if word == "--model" and words:
            named.append(words.pop(0))
        elif word.startswith("--model="):
            named.append(word.partition("=")[2])
        else:
            rest.append(word)
    if len(set(named)) > 1:
        raise UsageError(
            f"two models are named: {named[0]} and {named[1]}", hint=f"--model {named[0]}"
        )
    return (named[0] if named else None), tuple(rest)


def refused_flags(
    said: str, flags: Sequence[str], options: Collection[str] = ()
) -> UsageError | None:
    """What to say where vLLM's parser refuses the flags in these words; None where it speaks of
    something else. `options` are those that it has, without their dashes.
    """
    known = {_name(word) for word in flags}
    unknown: list[str] = []
    if said.startswith(_UNKNOWN):
        unknown = [word for word in said.removeprefix(_UNKNOWN).split() if _name(word) in known]
    argument = _ARGUMENT.match(said)
    if not unknown and (argument is None or f"--{argument['option']}" not in known):
        return None
    instead = list(_instead(unknown, options))
    if argument and (pairs := _PAIRS.search(said)):
        limits = {name: int(count) for name, _, count in _split(pairs["pairs"])}
        instead = [f"--{argument['option']} '{json.dumps(limits)}'"]
    return UsageError(
        f"vLLM does not take these flags: {one_line(said)}",
        hint="; ".join(instead) or "vllm serve --help=all lists them",
    )


def refuse_unknown(engine_args: Iterable[str], known: Collection[str]) -> None:
    """Raises UsageError for the first name that is no argument of vLLM's engine."""
    for name in engine_args:
        if name in known:
            continue
        near = difflib.get_close_matches(name, known, n=1)
        hint = near[0] if near else "vllm serve --help=all lists them, with dashes"
        if knob := next(retired_among({name: None}), None):
            hint = _today(knob)
        raise UsageError(f"engine_args: the installed vLLM has no argument {name}", hint=hint)


def _name(word: str) -> str:
    """A flag as vLLM's parser takes it, without its value; another word as it is."""
    if not word.startswith("--"):
        return word
    return word.partition("=")[0].partition(".")[0].replace("_", "-")


def _instead(unknown: Sequence[str], options: Collection[str]) -> Iterator[str]:
    for name in filter(lambda name: name.startswith("--"), map(_name, unknown)):
        if knob := next(retired_in(name), None):
            yield _today(knob)
        elif near := difflib.get_close_matches(name[2:], options, n=1):
            yield f"--{near[0]} for {name}"


def _today(knob: RetiredKnob) -> str:
    gone = f"gone since vLLM {knob.absent_in}"
    return f"{knob.today} for {knob.name}" if knob.today else f"leave out {knob.name}, {gone}"


def _split(pairs: str) -> list[tuple[str, str, str]]:
    return [pair.partition("=") for pair in pairs.split(",")]
