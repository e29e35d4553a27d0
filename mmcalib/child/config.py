"""Reads a YAML file with the very parser that `vllm serve --config` uses."""

from __future__ import annotations

import dataclasses
import enum
from typing import Any

from mmcalib.engine.messages import ParseServeConfig, ServeConfig, ServeOptions
from mmcalib.releases.constants import PROMPTING, reaching
from mmcalib.releases.engine import ARGUMENTS
from mmcalib.releases.platform import parsers

# What a calibration is of: the engine, and how the server writes its prompts.
_CALIBRATED = (*ARGUMENTS, *PROMPTING)
# What the parser notes of its own words.
_NO_ARGUMENTS = ("config", "model_tag")


def parse(request: ParseServeConfig) -> ServeConfig:
    """The engine arguments that the file sets; those left at vLLM's defaults are not listed.

    Raises ValueError with the parser's own complaint for a file that `vllm serve` would refuse.
    """
    config = ["--config", request.path] if request.path else []
    # A model beside a file that names none is heard only right behind `serve`.
    first = 0 if not request.flags or request.flags[0].startswith("-") else 1
    model, flags = request.flags[:first], request.flags[first:]
    with_file = _arguments(["serve", *model, *config, *request.written, *flags])
    without = _arguments(["serve", str(with_file["model"])])
    changed = {
        name: with_file[name]
        for name in _CALIBRATED
        if name in with_file and (name == "model" or with_file[name] != without[name])
    }
    far = tuple(reaching(with_file, without, _CALIBRATED)) if config or request.written else ()
    if far and flags:
        given = _arguments(["serve", str(with_file["model"]), *flags])
        far = tuple(reaching(with_file, given, _CALIBRATED))
    server = tuple(
        name
        for name, value in with_file.items()
        if name not in (*_CALIBRATED, *_NO_ARGUMENTS) and value != without.get(name)
    )
    return ServeConfig(changed, with_file, far, server)


def options() -> ServeOptions:
    """Every option of `vllm serve`, as it is spelled without its dashes, and what it sets; and the
    arguments of the engine.
    """
    found = parsers()[1]._option_string_actions
    arguments = {name[2:]: a.dest for name, a in found.items() if name[:2] == "--"}
    return ServeOptions(arguments, _CALIBRATED)


def _arguments(words: list[str]) -> dict[str, Any]:
    parsed = parsers()[0].parse_args(words)
    if getattr(parsed, "model_tag", None) is not None:
        parsed.model = parsed.model_tag
    return {name: _plain(value) for name, value in vars(parsed).items()}


def _plain(value: Any) -> Any:
    """Nested dataclasses, enums and paths as JSON would carry them."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _said(value)
    if isinstance(value, enum.Enum):
        # `CUDAGraphMode.FULL_DECODE_ONLY` is a pair, which vLLM takes back by its name alone.
        return value.name if isinstance(value.value, tuple) else value.value
    if isinstance(value, dict):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    if isinstance(value, (str, int, float, bool)) or value is None:
        return value
    return str(value)


def _said(config: Any) -> dict[str, Any]:
    """The fields of one of vLLM's config classes that can be given and are not at their defaults:
    with them it can be built anew.
    """
    given = [f.name for f in dataclasses.fields(config) if f.init]
    values = {name: _plain(getattr(config, name)) for name in given}
    try:
        default = type(config)()
    except (TypeError, ValueError):
        return {name: value for name, value in values.items() if value is not None}
    plain = {name: _plain(getattr(default, name)) for name in given}
    return {name: value for name, value in values.items() if value != plain[name]}
