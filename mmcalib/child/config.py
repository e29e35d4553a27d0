"""Parse configurations with the parser of `vllm serve`."""

from __future__ import annotations

import dataclasses
import enum
import os
from typing import Any

from mmcalib.engine.messages import KnownOptions, ParseServeConfig, ServeConfig
from mmcalib.releases.constants import PROMPT_ARGUMENTS, find_unsafe_settings
from mmcalib.releases.engine import ARGUMENTS, quantization_methods
from mmcalib.releases.platform import parsers

# Arguments that a calibration covers: of the engine, and of the server's prompts.
_CALIBRATED = (*ARGUMENTS, *PROMPT_ARGUMENTS)
# Fields of the parser's result that are not arguments of the server.
_NO_ARGUMENTS = ("config", "model_tag")


def parse_serve_config(request: ParseServeConfig) -> ServeConfig:
    """Return arguments unlike vLLM's defaults. Raises ValueError with the parser's own error."""
    config = ["--config", request.path] if request.path else []
    # With a file that names no model, vLLM accepts a model only directly after `serve`.
    first = 0 if not request.flags or request.flags[0].startswith("-") else 1
    model, flags = request.flags[:first], request.flags[first:]
    with_file = _arguments(["serve", *model, *config, *request.file_flags, *flags])
    without = _arguments(["serve", str(with_file["model"])])
    changed = {
        name: with_file[name]
        for name in _CALIBRATED
        if name in with_file and (name == "model" or with_file[name] != without[name])
    }
    method, known = changed.get("quantization"), quantization_methods()
    if method is not None and method not in known:
        # In the words of vLLM's `ModelConfig`, to which the parser leaves it.
        raise ValueError(f"Unknown quantization method: {method}. Must be one of {known}.")
    unsafe: tuple[str, ...] = ()
    if config or request.file_flags:
        unsafe = tuple(find_unsafe_settings(with_file, without, _CALIBRATED))
    if unsafe and flags:
        own = _arguments(["serve", str(with_file["model"]), *flags])
        unsafe = tuple(find_unsafe_settings(with_file, own, _CALIBRATED))
    server = tuple(
        name
        for name, value in with_file.items()
        if name not in (*_CALIBRATED, *_NO_ARGUMENTS) and value != without.get(name)
    )
    return ServeConfig(changed, with_file, unsafe, server)


def list_serve_options() -> KnownOptions:
    """Map each option of `vllm serve`, without its dashes, to its argument; list the engine's."""
    actions = parsers()[1]._option_string_actions
    arguments = {name[2:]: a.dest for name, a in actions.items() if name[:2] == "--"}
    return KnownOptions(arguments, _CALIBRATED)


def _arguments(words: list[str]) -> dict[str, Any]:
    parsed = parsers()[0].parse_args(words)
    if getattr(parsed, "model_tag", None) is not None:
        parsed.model = parsed.model_tag
    # An absolute path still works if the file is served from another folder.
    for name in ("chat_template", "tool_parser_plugin"):
        if os.path.isfile(path := getattr(parsed, name, None) or ""):
            setattr(parsed, name, os.path.abspath(path))
    return {name: _plain(value) for name, value in vars(parsed).items()}


def _plain(value: Any) -> Any:
    """Convert nested dataclasses, enums and paths to values that JSON can hold."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _changed_fields(value)
    if isinstance(value, enum.Enum):
        # `CUDAGraphMode.FULL_DECODE_ONLY` is a pair; vLLM reads it only by its name.
        return value.name if isinstance(value.value, tuple) else value.value
    if isinstance(value, dict):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    if isinstance(value, (str, int, float, bool)) or value is None:
        return value
    return str(value)


def _changed_fields(config: Any) -> dict[str, Any]:
    """Return the changed fields of a vLLM config object, which suffice to build it again."""
    names = [f.name for f in dataclasses.fields(config) if f.init]
    values = {name: _plain(getattr(config, name)) for name in names}
    try:
        default = type(config)()
    except (TypeError, ValueError):
        return {name: value for name, value in values.items() if value is not None}
    plain = {name: _plain(getattr(default, name)) for name in names}
    return {name: value for name, value in values.items() if value != plain[name]}
