"""What is said in options, said again in arguments, for those who call mmcalib from Python."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from mmcalib.errors import MmcalibError

P = ParamSpec("P")
R = TypeVar("R")

_CALLS = {"run": "calibrate", "rehearse": "rehearse", "validate": "validate"}
# Arguments of the library that have another name than their option.
_RENAMED = {"startup_budget": "startup_budget_s", "ram_budget": "ram_budget_bytes"}
# What the library has and the options of `run` have not; and the reverse.
_MORE, _LESS = frozenset({"config", "flags", "progress"}), frozenset({"out", "policy"})
_VALUE = (
    r"(?:'[^']*'|[A-Z][A-Z_]*(?:\.[a-z]+)?\b|\w+(?=:)|[^\s,;:)'\"]*[\d=./][^\s,;:)'\"]*(?<!\.))"
)
_OPTION = re.compile(rf"--(?P<name>[a-z][a-z-]*)(?: (?P<value>{_VALUE}|\w+))?")
_COMMAND = re.compile(rf"mmcalib (?P<verb>[a-z]+)(?P<rest>(?: --?[a-z][\w-]*(?: {_VALUE})?)*)")


def in_library_words(call: Callable[P, R]) -> Callable[P, R]:
    """The same function, whose errors name its arguments, and hold their hint as a note, so that a
    traceback shows it.
    """

    @functools.wraps(call)
    def spoken(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return call(*args, **kwargs)
        except MmcalibError as error:
            error.message, error.hint = library_words(error.message), library_words(error.hint)
            error.args = (error.message,)
            if error.hint:
                error.add_note(f"try: {error.hint}")
            raise

    return spoken


def library_words(text: str) -> str:
    """`--max-num-seqs 8` as `Policy(max_num_seqs=8)`, `--gpu L4` as `gpu="L4"`, and `mmcalib run
    --data DIR` as the call. What only a shell can do stays as it is.
    """
    if "--" not in text and "mmcalib " not in text:
        return text
    made, at = "", 0
    for command in _COMMAND.finditer(text):
        made += _OPTION.sub(_argument, text[at : command.start()]) + _call(command)
        at = command.end()
    return made + _OPTION.sub(_argument, text[at:])


def _call(command: re.Match[str]) -> str:
    verb = _CALLS.get(command["verb"])
    if verb is None:
        return command[0]
    given = [_argument(option) for option in _OPTION.finditer(command["rest"])]
    return f"mmcalib.{verb}({', '.join(one for one in given if not one.startswith('--'))})"


def _argument(option: re.Match[str]) -> str:
    name, value = option["name"].replace("-", "_"), option["value"] or ""
    arguments, rules, switches = _known()
    name = _RENAMED.get(name, name)
    if name not in arguments and name not in rules:
        return option[0]
    if name in switches:
        said, after = f"{name}=True", f" {value}" if value else ""
    elif not value or not (_is_value(option) or value in _words_of(name)):
        said, after = name, f" {value}" if value else ""
    else:
        said, after = f"{name}={_literal(value)}", ""
    return (f"Policy({said})" if name in rules and "=" in said else said) + after


def _is_value(option: re.Match[str]) -> bool:
    """Rather than the next word of a sentence."""
    return re.match(_VALUE, option.string[option.start("value") :]) is not None


def _literal(value: str) -> str:
    if re.fullmatch(r"[A-Z_]+(\.[a-z]+)?|-?\d+(\.\d+)?", value):
        return value
    if value.startswith("'"):
        return value.strip("'")
    key, mark, inner = value.partition("=")
    return f'{{"{key}": {inner}}}' if mark else f'"{value}"'


@functools.cache
def _known() -> tuple[frozenset[str], frozenset[str], frozenset[str]]:
    """The arguments of calls, the fields of a policy, and which of both are yes or no."""
    from mmcalib.derive.policy import Policy
    from mmcalib.options.option import options_of
    from mmcalib.options.run import RunOptions

    rules = frozenset(inspect.signature(Policy).parameters)
    options = {field.name: field for field in options_of(RunOptions)}
    switches = {name for name, field in options.items() if field.type is bool}
    arguments = frozenset(options) - _LESS - frozenset(_RENAMED) - rules | _MORE
    return arguments, rules, frozenset(switches)


def _words_of(name: str) -> tuple[str, ...]:
    from mmcalib.options.option import options_of
    from mmcalib.options.run import RunOptions

    found = (field for field in options_of(RunOptions) if field.name == name)
    choices = next((field.choices for field in found), ())
    return (*choices, "fit") if name == "max_model_len" else choices
