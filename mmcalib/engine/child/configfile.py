"""Reads a YAML file with the very parser that `vllm serve --config` uses."""

from __future__ import annotations

import argparse
import dataclasses
import enum
from typing import Any

from vllm.engine.arg_utils import EngineArgs
from vllm.entrypoints.cli.serve import ServeSubcommand
from vllm.utils.argparse_utils import FlexibleArgumentParser

from mmcalib.engine.messages import ParseServeConfig, ServeConfig


def parse(request: ParseServeConfig) -> ServeConfig:
    """The engine arguments that the file sets; those left at vLLM's defaults are not listed.

    Raises ValueError with the parser's own complaint for a file that `vllm serve` would refuse.
    """
    config = ["--config", request.path] if request.path else []
    with_file = _arguments(["serve", *config, *request.flags])
    without = _arguments(["serve", str(with_file["model"])])
    changed = {
        name: value
        for name, value in with_file.items()
        if name == "model" or value != without[name]
    }
    return ServeConfig(changed)


def _arguments(words: list[str]) -> dict[str, Any]:
    parser = _Parser(prog="vllm")
    ServeSubcommand().subparser_init(parser.add_subparsers(dest="subparser"))
    parsed = parser.parse_args(words)
    if getattr(parsed, "model_tag", None) is not None:
        parsed.model = parsed.model_tag
    # Not through EngineArgs.from_cli_args: building EngineArgs looks the model up.
    names = [field.name for field in dataclasses.fields(EngineArgs)]
    return {name: _plain(getattr(parsed, name)) for name in names if hasattr(parsed, name)}


class _Parser(FlexibleArgumentParser):  # type: ignore[misc] # vLLM has no stubs
    """vLLM's parser, except that a complaint is raised instead of ending the process."""

    def error(self, message: str) -> Any:
        raise argparse.ArgumentTypeError(message)


def _plain(value: Any) -> Any:
    """Nested dataclasses, enums and paths as JSON would carry them."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return {name: inner for name, inner in fields.items() if inner is not None}
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, dict):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    if isinstance(value, (str, int, float, bool)) or value is None:
        return value
    return str(value)
